"""Which library for grammars? llguidance, which the server uses, beside XGrammar: masks, compiling, what is enforced.

    pip install xgrammar mistral-common
    python -m beyond.structured.engines

Method. Speed: in turn in one process, both compile the ten schemas of schemas.json and read an answer to each, token by
token: a mask, then the token. Compiling ends with the first mask, since llguidance compiles parts of a grammar when they
are reached. Vocabularies: the bundled model's, and that of mistral-common's file tekken_240911.json. Enforcement: for
each schema, answers are sampled from random logits at temperature 1, and validated. Both engines allow one blank between
parts of JSON. All else is their default, with which XGrammar adds no properties that a schema does not name.

Expectation. XGrammar sorts the vocabulary for every place in a grammar while it compiles, so it compiles longer and masks
sooner. llguidance walks a tree of the vocabulary for each mask. The larger vocabulary sharpens both.
"""

import json
import sys
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.bench.harness import Benchmark, Figures, Headline, Unavailable
from common.bench.plots import short
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.tables import Rows
from common.structured_output import json_grammar

FORMS = json.loads((Path(__file__).parent / "schemas.json").read_text(encoding="utf-8"))
LOADS = {"one request": (1, 1), "32 requests, one thread": (32, 1), "32 requests, two threads": (32, 2)}
SIZES = {"repeats": 1, "rounds": 9, "tokens": 96, "answers": 12, "most_tokens": 300}
QUICK = {"rounds": 3, "answers": 4}
TINY = {"rounds": 1, "tokens": 4, "answers": 1, "most_tokens": 40}
CLOSED, VERDICTS = 60, ("enforced", "refused", "accepted, not enforced", "without an end")


class Llguidance:
    """llguidance, as common/structured_output.py calls it. Engines have the same four methods."""

    def __init__(self, tokenizer, size: int, end: list[int]):
        import llguidance.hf
        import llguidance.numpy

        self.library, self.tokens = llguidance, llguidance.hf.from_tokenizer(tokenizer, size, end)
        self.executors = {threads: llguidance.LLExecutor(threads) for threads in (1, 2)}

    def compile(self, schema: dict):
        """Return what `begin` takes. Raise ValueError or RuntimeError if the schema is refused."""
        matcher = self.library.LLMatcher(self.tokens, json_grammar(schema), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def begin(self, form):
        return form.deep_copy()

    def fill(self, matchers: list, masks: numpy.ndarray, threads: int = 1) -> None:
        rows = [(matcher, row) for row, matcher in enumerate(matchers)]
        self.library.numpy.fill_next_token_bitmask_par(self.executors[threads], rows, masks)

    def read(self, matchers: list, token_ids: list[int]) -> None:
        for matcher, token_id in zip(matchers, token_ids, strict=True):
            matcher.consume_token(token_id)


class Xgrammar:
    """XGrammar, with its own defaults but for blanks, and without a cache: each schema is compiled each time."""

    def __init__(self, tokenizer, size: int, end: list[int]):
        try:
            import xgrammar
        except ModuleNotFoundError as error:
            raise Unavailable("this compares llguidance with XGrammar: pip install xgrammar") from error
        self.begin, self.read = xgrammar.GrammarMatcher, xgrammar.BatchGrammarMatcher.batch_accept_token
        self.batches = {threads: xgrammar.BatchGrammarMatcher(threads) for threads in (1, 2)}
        tokens = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=end)
        self.compiler = xgrammar.GrammarCompiler(tokens, max_threads=2, cache_enabled=False)

    def compile(self, schema: dict):
        return self.compiler.compile_json_schema(json.dumps(schema), max_whitespace_cnt=1)

    def fill(self, matchers: list, masks: numpy.ndarray, threads: int = 1) -> None:
        self.batches[threads].batch_fill_next_token_bitmask(matchers, masks)


ENGINES = {"llguidance": Llguidance, "XGrammar": Xgrammar}


def bundled(settings: Settings) -> tuple:
    """Return a tokenizer, how many tokens the model has, and which end a text."""
    loaded = settings.load()
    return loaded.tokenizer, loaded.config.vocab_size, sorted(loaded.eos_token_ids)


def tekken(settings: Settings) -> tuple:
    try:
        import mistral_common
    except ModuleNotFoundError as error:
        raise Unavailable("the larger vocabulary comes from a package: pip install mistral-common") from error
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.mistral.tokenizer import MistralConverter

    file = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=MistralConverter(str(file)).converted())
    return tokenizer, len(tokenizer), [tokenizer.convert_tokens_to_ids("</s>")]


def measure_speed(settings: Settings, sizes: dict, vocabulary=bundled) -> Figures:
    """Return the figures of each round, by engine."""
    tokenizer, size, end = vocabulary(settings)
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
            found = {"compile_ms": 1e3 * median(seconds), "slowest_compile_ms": 1e3 * max(seconds)}
            for load, (requests, threads) in LOADS.items():
                found[load] = masks_per_second(engine, forms, answers, masks[:requests], threads, sizes["tokens"])
            for figure, value in found.items():
                figures[f"{name}, {figure}"] += [value] if number else []  # the first is a warm-up
    return {"vocabulary": size, **figures}


def masks_per_second(engine, forms: list, answers: list, masks: numpy.ndarray, threads: int, tokens: int) -> float:
    """Have as many requests as there are masks read so many tokens of their answers; one request: of each in turn."""
    seconds, requests = 0.0, len(masks)
    firsts = range(len(forms)) if requests == 1 else range(1)
    for first in firsts:
        places = [(first + row) % len(forms) for row in range(requests)]
        matchers = [None] * requests
        for step in range(tokens):
            token_ids = [answers[place][step % len(answers[place])] for place in places]
            for row, place in enumerate(places):
                if step % len(answers[place]) == 0:
                    matchers[row] = engine.begin(forms[place])
            start = perf_counter()
            engine.fill(matchers, masks, threads)
            engine.read(matchers, token_ids)
            seconds += perf_counter() - start
            if not all(masks[row, i // 32] >> i % 32 & 1 for row, i in enumerate(token_ids)):
                raise RuntimeError(f"{type(engine).__name__} forbids a token of a right answer")
    return len(firsts) * requests * tokens / seconds


def measure_forms(settings: Settings, sizes: dict) -> Figures:
    """Return for each keyword and engine how many schemas have each verdict."""
    from tests.common.test_structured_output import SCHEMAS

    tokenizer, size, end = bundled(settings)
    engines = {name: engine(tokenizer, size, end) for name, engine in ENGINES.items()}
    texts = [engines["llguidance"].tokens.decode_bytes([token_id]) for token_id in range(size)]
    closing = numpy.array([text[:1] in (b'"', b"]", b"}") or i in end for i, text in enumerate(texts)])
    found = {name: {} for name in engines}
    for keyword, schemas in (FORMS["keywords"] | {"schemas of the tests": SCHEMAS}).items():
        few = max(1, sizes["answers"] // (4 if schemas is SCHEMAS else 1))
        for name, engine in engines.items():
            counted = Counter(verdict(engine, schema, texts, closing, end, few, sizes) for schema in schemas)
            found[name][keyword] = [counted[each] for each in VERDICTS]
    return found


def verdict(engine, schema: dict, texts: list[bytes], closing: numpy.ndarray, end: list, few: int, sizes: dict) -> str:
    import jsonschema

    try:
        form = engine.compile(schema)
        answers = [sample(engine, form, texts, closing, end, seed, sizes["most_tokens"]) for seed in range(few)]
    except (ValueError, RuntimeError):
        return "refused"
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    try:
        for answer in filter(None, answers):
            validator.validate(json.loads(answer))
    except Exception:  # no JSON, no UTF-8, not valid, or a number too large to be divided
        return "accepted, not enforced"
    return "enforced" if any(answers) else "without an end"


def sample(engine, form, texts: list[bytes], closing: numpy.ndarray, end: list, seed: int, most: int) -> bytes | None:
    """Return what random logits give behind masks; None if it has no end. Later, closing brackets and quotes lead."""
    random, matcher, answer = numpy.random.default_rng(seed), engine.begin(form), b""
    masks = numpy.zeros((1, -(-len(texts) // 32)), numpy.int32)
    for step in range(most):
        engine.fill([matcher], masks)
        allowed = numpy.flatnonzero(numpy.unpackbits(masks.view(numpy.uint8), bitorder="little")[: len(texts)])
        if not allowed.size:
            return None
        logits = random.normal(size=allowed.size) + 10 * closing[allowed] * (step >= CLOSED)
        chosen = int(allowed[numpy.argmax(logits + random.gumbel(size=allowed.size))])
        if chosen in end:
            return answer
        engine.read([matcher], [chosen])
        answer += texts[chosen]
    return None


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={"bundled": measure_speed, "large": partial(measure_speed, vocabulary=tekken), "forms": measure_forms},
    sizes={"full": SIZES, "quick": QUICK, "tiny": TINY},
    seconds={"full": 170},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
