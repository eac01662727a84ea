"""Which library for grammars? llguidance, which the server uses, beside XGrammar: masks, compiling, what is enforced.

    pip install xgrammar mistral-common
    python -m beyond.structured.engines

Speed: in turn in one process, both compile the ten schemas of schemas.json and read an answer to each: a mask, then a
token. Compiling ends with the first mask, since llguidance compiles parts of a grammar when they are reached.
Vocabularies: the bundled model's, and tekken_240911 of mistral-common. Enforcement: answers to each schema, sampled from
random logits at temperature 1, are validated. Both engines allow a blank between parts of JSON; all else is their default.

Expectation: XGrammar sorts the vocabulary for all places of a grammar when it compiles, llguidance walks a tree of the
vocabulary for each mask. So XGrammar compiles longer and masks sooner, and more so with the larger vocabulary.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from time import perf_counter

import jsonschema
import llguidance.hf
import llguidance.numpy
import numpy
from transformers import PreTrainedTokenizerFast

from common.bench.harness import Benchmark, Figures, Unavailable
from common.bench.plots import short
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.tables import Rows
from common.structured_output import json_grammar

FORMS = json.loads(Path(__file__).with_name("schemas.json").read_text(encoding="utf-8"))
LOADS = {"one request": (1, 1), "32 requests, one thread": (32, 1), "32 requests, two threads": (32, 2)}
SIZES = {"repeats": 1, "rounds": 9, "tokens": 96, "answers": 12}
VERDICTS = ("enforced", "refused", "accepted, not enforced")


class Llguidance:
    """llguidance as common/structured_output.py uses it. `compile` of both engines raises an error for what it refuses."""

    def __init__(self, tokenizer, size: int, end: list[int]):
        self.tokens = llguidance.hf.from_tokenizer(tokenizer, size, end)
        self.executors = {threads: llguidance.LLExecutor(threads) for threads in (1, 2)}
        self.begin = llguidance.LLMatcher.deep_copy

    def compile(self, schema: dict):
        matcher = llguidance.LLMatcher(self.tokens, json_grammar(schema), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def fill(self, matchers: list, masks: numpy.ndarray, threads: int = 1) -> None:
        rows = [(matcher, row) for row, matcher in enumerate(matchers)]
        llguidance.numpy.fill_next_token_bitmask_par(self.executors[threads], rows, masks)

    def read(self, matchers: list, token_ids: list[int]) -> None:
        for matcher, token_id in zip(matchers, token_ids, strict=True):
            matcher.consume_token(token_id)


class Xgrammar:
    """XGrammar without a cache, so that it compiles each schema each time."""

    def __init__(self, tokenizer, size: int, end: list[int]):
        import xgrammar

        tokens = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=end)
        self.compiler = xgrammar.GrammarCompiler(tokens, max_threads=2, cache_enabled=False)
        self.batches = {threads: xgrammar.BatchGrammarMatcher(threads) for threads in (1, 2)}
        self.begin, self.read = xgrammar.GrammarMatcher, xgrammar.BatchGrammarMatcher.batch_accept_token

    def compile(self, schema: dict):
        return self.compiler.compile_json_schema(json.dumps(schema), max_whitespace_cnt=1)

    def fill(self, matchers: list, masks: numpy.ndarray, threads: int = 1) -> None:
        self.batches[threads].batch_fill_next_token_bitmask(matchers, masks)


ENGINES = {"llguidance": Llguidance, "XGrammar": Xgrammar}


def measure(settings: Settings, sizes: dict) -> Figures:
    """Return "ENGINE, VOCABULARY, what": a figure for each round; and "ENGINE, KEYWORD": how many schemas by VERDICTS."""
    try:
        import mistral_common
        import xgrammar  # noqa: F401
    except ModuleNotFoundError as error:
        raise Unavailable(f"{error}: pip install xgrammar mistral-common") from error
    from transformers.integrations.mistral.tokenizer import MistralConverter

    from tests.common.test_structured_output import SCHEMAS

    file = Path(mistral_common.__file__).with_name("data") / "tekken_240911.json"
    large = PreTrainedTokenizerFast(tokenizer_object=MistralConverter(str(file)).converted())
    figures = speed(large, len(large), [large.convert_tokens_to_ids("</s>")], sizes)
    loaded = settings.load()
    bundled = (loaded.tokenizer, loaded.config.vocab_size, sorted(loaded.eos_token_ids))
    figures |= speed(*bundled, sizes)
    engines = {name: engine(*bundled) for name, engine in ENGINES.items()}
    texts = [engines["llguidance"].tokens.decode_bytes([token_id]) for token_id in range(bundled[1])]
    for keyword, schemas in (FORMS["keywords"] | {"the tests' schemas": SCHEMAS}).items():
        answers = 2 if schemas is SCHEMAS else sizes["answers"]
        for name, engine in engines.items():
            verdicts = Counter(verdict(engine, schema, texts, bundled[2], answers) for schema in schemas)
            figures[f"{name}, {keyword}"] = [verdicts[each] for each in VERDICTS]
    return figures


def speed(tokenizer, size: int, end: list[int], sizes: dict) -> Figures:
    engines = {name: engine(tokenizer, size, end) for name, engine in ENGINES.items()}
    answers = [tokenizer.encode(json.dumps(form["answer"]), add_special_tokens=False) for form in FORMS["speed"]]
    figures, masks = defaultdict(list), numpy.zeros((32, -(-size // 32)), numpy.int32)
    for number in range(1 + sizes["rounds"]):
        for name in list(engines)[:: 1 if number % 2 else -1]:
            engine, forms, seconds = engines[name], [], []
            for form in FORMS["speed"]:
                start = perf_counter()
                forms.append(engine.compile(form["schema"]))
                engine.fill([engine.begin(forms[-1])], masks[:1])
                seconds.append(perf_counter() - start)
            found = {"ms to compile, median": 1e3 * median(seconds), "ms to compile, slowest": 1e3 * max(seconds)}
            for load, (requests, threads) in LOADS.items():
                alone = [[place] for place in range(len(forms))]
                batches = alone if requests == 1 else [[row % len(forms) for row in range(requests)]]
                times = [read(engine, forms, answers, batch, masks, threads, sizes["tokens"]) for batch in batches]
                found[f"masks/s, {load}"] = len(batches) * requests * sizes["tokens"] / sum(times)
            for what, value in found.items() if number else ():  # the first is a warm-up
                figures[f"{name}, {size:,} tokens, {what}"].append(value)
    return figures


def read(engine, forms: list, answers: list, batch: list, masks: numpy.ndarray, threads: int, tokens: int) -> float:
    """Have each request of a batch read so many tokens of its answer, again and again; return the seconds."""
    seconds, matchers = 0.0, [None] * len(batch)
    for step in range(tokens):
        token_ids = [answers[place][step % len(answers[place])] for place in batch]
        for row, place in enumerate(batch):
            if step % len(answers[place]) == 0:
                matchers[row] = engine.begin(forms[place])
        start = perf_counter()
        engine.fill(matchers, masks[: len(batch)], threads)
        engine.read(matchers, token_ids)
        seconds += perf_counter() - start
        if not all(masks[row, token_id // 32] >> token_id % 32 & 1 for row, token_id in enumerate(token_ids)):
            raise RuntimeError(f"{type(engine).__name__} forbids a token of a valid answer")
    return seconds


def verdict(engine, schema: dict, texts: list[bytes], end: list[int], answers: int) -> str:
    """Sample answers behind masks. One that does not end within 300 tokens is not validated."""
    try:
        form = engine.compile(schema)
    except (ValueError, RuntimeError):
        return "refused"
    closing = numpy.array([text[:1] in (b'"', b"]", b"}") or i in end for i, text in enumerate(texts)])
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    masks, ended = numpy.zeros((1, -(-len(texts) // 32)), numpy.int32), 0
    for seed in range(answers):
        random, matchers, text = numpy.random.default_rng(seed), [engine.begin(form)], b""
        for step in range(300):
            engine.fill(matchers, masks)
            allowed = numpy.unpackbits(masks.view(numpy.uint8), bitorder="little")[: len(texts)]
            # As a model does, quotes and brackets close in the end: what leads there is likelier from token 60 on.
            logits = random.normal(size=len(texts)) + 10 * closing * (step >= 60)
            chosen = int(numpy.argmax(numpy.where(allowed, logits + random.gumbel(size=len(texts)), -numpy.inf)))
            if chosen in end or not allowed.any():
                break
            engine.read(matchers, [chosen])
            text += texts[chosen]
        else:
            continue
        try:
            validator.validate(json.loads(text))
        except Exception:  # no JSON, no UTF-8, not valid, or a number too large to be divided
            return "accepted, not enforced"
        ended += 1
    return "enforced" if ended else "accepted, not enforced"


def report(document: dict) -> dict[str, Rows]:
    figures = {name: figure["median"] for name, figure in document["sides"]["engines"].items()}
    pairs = {
        name.partition(", ")[2]: [figures[f"{engine}, {name.partition(', ')[2]}"] for engine in ENGINES]
        for name in figures
    }
    speeds = [
        [what, *(f"{short(median(each))} ({short(min(each))} to {short(max(each))})" for each in pair)]
        for what, pair in pairs.items()
        if "tokens, m" in what
    ]
    counts = [
        [what, *(" ".join(map(str, each)) for each in pair)] for what, pair in pairs.items() if "tokens, m" not in what
    ]
    return {"speed": [["", *ENGINES], *speeds], "forms": [["schemas with", *ENGINES], *counts]}


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={"engines": measure},
    sizes={"full": SIZES, "quick": {"rounds": 2, "answers": 4}, "tiny": {"rounds": 1, "tokens": 4, "answers": 1}},
    seconds={"full": 170},
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
