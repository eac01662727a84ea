"""Which library for grammars? llguidance, which the server uses, beside XGrammar: masks, compiling, what is enforced.

    pip install xgrammar mistral-common
    python -m beyond.structured.engines.benchmark

Speed: in turn in one process, both compile the ten schemas of schemas.json and read an answer to each: a mask, then a
token. Compiling ends with the first mask, since llguidance compiles parts of a grammar when they are reached. There are
two vocabularies: the bundled model's, and tekken_240911 of mistral-common. Enforcement: answers to each schema, sampled
from random logits at temperature 1, are validated. Both allow a blank between parts of JSON; all else is their default.

Expectation: XGrammar sorts the vocabulary for all places of a grammar when it compiles, llguidance walks a tree of the
vocabulary for each mask. So XGrammar compiles longer and masks sooner, and more so with the larger vocabulary.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from itertools import cycle, islice
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
from common.grammars import json_grammar

FORMS = json.loads(Path(__file__).with_name("schemas.json").read_text(encoding="utf-8"))
LOADS = {"one request": (1, 1), "32 requests, one thread": (32, 1), "32 requests, two threads": (32, 2)}
SIZES = {"repeats": 1, "rounds": 7, "masks": 3072, "answers": 16}


class Llguidance:
    """llguidance, as common/structured_output.py calls it. `compile` raises ValueError or RuntimeError to refuse."""

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
    """XGrammar. It keeps nothing that it has compiled."""

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
    """Return for each engine the figures of each round, and for each keyword how many schemas have each verdict."""
    try:
        import mistral_common

        versions = {name: version(name) for name in ENGINES}
    except ModuleNotFoundError as error:
        raise Unavailable(f"{error}: pip install xgrammar mistral-common") from error
    from transformers.integrations.mistral.tokenizer import MistralConverter

    from tests.common.test_structured_output import SCHEMAS

    file = Path(mistral_common.__file__).with_name("data") / "tekken_240911.json"
    large = PreTrainedTokenizerFast(tokenizer_object=MistralConverter(str(file)).converted())
    loaded = settings.load()
    bundled = (loaded.tokenizer, loaded.config.vocab_size, sorted(loaded.eos_token_ids))
    rounds = [speed(*bundled, sizes), speed(large, len(large), [large.convert_tokens_to_ids("</s>")], sizes)]
    figures: Figures = {"versions": versions}
    for name, engine in ENGINES.items():
        verdict = partial(judge, engine(*bundled), bundled, sizes["answers"])
        forms = {keyword: Counter(map(verdict, schemas)) for keyword, schemas in FORMS["keywords"].items()}
        figures[name] = {"speed": rounds[0][name] | rounds[1][name], "forms": forms}
        figures[name]["tests"] = Counter(map(verdict, SCHEMAS))
    return figures


def speed(tokenizer, size: int, end: list[int], sizes: dict) -> dict[str, dict[str, list[float]]]:
    engines = {name: engine(tokenizer, size, end) for name, engine in ENGINES.items()}
    answers = [tokenizer.encode(json.dumps(form["answer"]), add_special_tokens=False) for form in FORMS["speed"]]
    figures, masks = {name: defaultdict(list) for name in engines}, numpy.zeros((32, -(-size // 32)), numpy.int32)
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
                streams = [stream(engine, forms, answers, row) for row in range(requests)]
                rate = masks_per_second(engine, streams, masks[:requests], threads, sizes["masks"])
                found[f"masks/s, {load}"] = rate
            for what, value in found.items() if number else ():  # the first is a warm-up
                figures[name][f"{size:,} tokens: {what}"].append(value)
    return figures


def stream(engine, forms: list, answers: list[list[int]], row: int) -> Iterator[tuple]:
    """Yield a matcher and its next token, answer after answer, those of one request beginning with another's second."""
    for form, answer in islice(cycle(zip(forms, answers, strict=True)), row % len(forms), None):
        matcher = engine.begin(form)
        for token_id in answer:
            yield matcher, token_id


def masks_per_second(engine, streams: list[Iterator], masks: numpy.ndarray, threads: int, count: int) -> float:
    seconds = 0.0
    for _ in range(count // len(streams)):
        matchers, token_ids = map(list, zip(*map(next, streams), strict=True))
        start = perf_counter()
        engine.fill(matchers, masks, threads)
        engine.read(matchers, token_ids)
        seconds += perf_counter() - start
        if not all(masks[row, token_id // 32] >> token_id % 32 & 1 for row, token_id in enumerate(token_ids)):
            raise RuntimeError(f"{type(engine).__name__} forbids a token of a valid answer")
    return count / seconds


def judge(engine, vocabulary: tuple, answers: int, schema: dict) -> str:
    """Validate so many answers that random logits give behind masks, but for those of more than 200 tokens."""
    try:
        form = engine.compile(schema)
    except (ValueError, RuntimeError):
        return "refused"
    (tokenizer, size, end), ended = vocabulary, 0
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    closing = numpy.array([str(token)[0] in '"]}' for token in tokenizer.convert_ids_to_tokens(range(size))])
    masks = numpy.zeros((1, -(-size // 32)), numpy.int32)
    for seed in range(answers):
        random, matchers, token_ids = numpy.random.default_rng(seed), [engine.begin(form)], []
        while len(token_ids) < 200 and not {*token_ids[-1:]} & {*end}:
            engine.fill(matchers, masks)
            allowed = numpy.flatnonzero(numpy.unpackbits(masks.view(numpy.uint8), bitorder="little")[:size])
            logits = random.normal(size=allowed.size)
            logits[closing[allowed]] += 10 * (len(token_ids) > 40)  # what brings an answer to its end
            token_ids.append(int(allowed[numpy.argmax(logits + random.gumbel(size=allowed.size))]))  # a sample
            engine.read(matchers, token_ids[-1:])
        if token_ids[-1] in end:
            ended += 1
            try:
                validator.validate(json.loads(tokenizer.decode(token_ids[:-1])))
            except Exception:  # no JSON, not valid, or a number too large to be divided
                return "not enforced"
    return "enforced" if ended else "not enforced"


def found_in(document: dict) -> dict[str, dict]:
    return {name: document["sides"]["engines"][name]["values"][0] for name in ENGINES}


def slowest_compile(document: dict, engine: str) -> float:
    """Return milliseconds, with the large vocabulary."""
    return median(found_in(document)[engine]["speed"]["131,072 tokens: ms to compile, slowest"])


def report(document: dict) -> dict[str, Rows]:
    found = found_in(document)
    speeds: list[list] = [["", *found]]
    for what in found["XGrammar"]["speed"]:
        rates = [each["speed"][what] for each in found.values()]
        speeds.append([what, *(f"{short(median(rate))} ({short(min(rate))} to {short(max(rate))})" for rate in rates)])
    forms: list[list] = [["", *found]]
    for verdict in ("enforced", "refused", "not enforced"):
        kinds = [{key: n[verdict] for key, n in each["forms"].items() if verdict in n} for each in found.values()]
        names = [": " + "; ".join(kind) if kind and verdict != "enforced" else "" for kind in kinds]
        forms.append([verdict, *(f"{sum(kind.values())}{name}" for kind, name in zip(kinds, names, strict=True))])
    forms.append(["enforced of what the tests ask for", *(each["tests"].get("enforced", 0) for each in found.values())])
    return {"speed": speeds, "forms": forms}


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={"engines": measure},
    sizes={"full": SIZES, "tiny": {"rounds": 1, "masks": 64, "answers": 1}},
    seconds={"full": 170},
    report=report,
    claims={
        "Of these, llguidance enforces all that it accepts": lambda document: (
            not sum(n.get("not enforced", 0) for n in found_in(document)["llguidance"]["forms"].values())
        ),
        "It compiles each in milliseconds; one takes XGrammar seconds": lambda document: (
            slowest_compile(document, "llguidance") < 20 and slowest_compile(document, "XGrammar") > 1000
        ),
    },
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
