"""What do fewer bits cost? Each form of weights, with K and V as the model has them and in 8 bits, against float32.

Method. Every form reads held-out English (lessons, the glossary, the model card and the licence of this repository) in
windows, through the pages of stage 06, and so does float32 in the same process: the perplexity of both, and by how much
each token's log-probability differs. Then stage 06 answers 64 chats with both, greedily: the share of float32's tokens
that come before the first one that differs. Rounding needs no examples, so no form has seen any of these texts.

Expectation. 8 bits divide each row by 127 steps of its largest number, and change little. With 4 bits and 16 steps for
each 32 weights the text gets a few percent less likely. A model that is shipped in 4 bits has lost that already, and
all other forms are measured against what is left: see the bundled model for the whole loss. Greedy answers part sooner
than perplexity suggests: one near tie decided otherwise, and all that follows is another text.
"""

import inspect
import math
import re
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.attention import PagedBatch
from common.bench import plots
from common.bench.harness import Benchmark, Figures, Headline, Unavailable
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.tables import Rows
from common.checkpoints.corpus import document
from common.checkpoints.unseen import QUESTIONS
from common.engine import BaseEngine
from common.loader import Loaded, chat_prompt, load_model
from common.sampling import SamplingParams
from common.stages import load_engine

STAGE = "06_prefix_cache"
TEXTS = ("0*/README.md", "GLOSSARY.md", "common/checkpoints/README.md", "LICENSE")
NO_PROSE = re.compile(r"^```.*?^```|^\|.*?$|<!--.*?-->|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


class Form(NamedTuple):
    """How weights are kept: options of `load_model`, and the bytes of one weight with its share of scales."""

    options: dict[str, str]
    bytes: float


FLOAT32 = {"dtype": "float32"}
FORMS = {
    "float32": Form(FLOAT32, 4),
    "bfloat16": Form({"dtype": "bfloat16"}, 2),
    "int8": Form(FLOAT32 | {"quantization": "int8"}, 1),
    "int4": Form(FLOAT32 | {"quantization": "int4"}, 4 / 8 + 4 / 32),
}
KV = {"auto": "", "int8": ", K and V in 8 bits"}
SIDES = {f"{form}{more}": (form, kv) for (kv, more), form in product(KV.items(), FORMS)}
SIZES = {"text_tokens": 4096, "window": 512, "chats": 64, "answer": 32}
TINY = {"text_tokens": 64, "window": 32, "chats": 2, "answer": 4}


def measure(side: str, settings: Settings, sizes: dict) -> Figures:
    """Compare one form with float32. Raise Unavailable for a form that `load_model` does not know."""
    form, kv = SIDES[side]
    known = inspect.signature(load_model).parameters
    if not known.keys() >= FORMS[form].options.keys():
        raise Unavailable(f"load_model has no {', '.join(FORMS[form].options.keys() - known.keys())}")
    common = {"device": settings.device, "load_format": settings.load_format}
    exact = load_model(settings.model, **common, **FLOAT32)
    rounded = load_model(settings.model, **common, **FORMS[form].options, kv_dtype=kv)
    engines = [load_engine(STAGE)(loaded) for loaded in (exact, rounded)]
    windows = torch.tensor(held_out(exact)[: sizes["text_tokens"]]).split(sizes["window"])
    before, after = (torch.cat([log_probabilities(engine, window) for window in windows]) for engine in engines)
    change = (after - before).abs()
    chats = [chat_prompt(exact.tokenizer, question) for question in QUESTIONS[: sizes["chats"]]]
    greedy = SamplingParams(max_tokens=sizes["answer"])
    answers = [[one.token_ids for one in engine.generate(chats, greedy)] for engine in engines]
    agreed = sum(first_difference(*both) for both in zip(*answers, strict=True))
    return {
        "perplexity": math.exp(-after.mean()),
        "more_than_float32_percent": 100 * math.expm1(before.mean() - after.mean()),
        "mean_change": change.mean().item(),
        "largest_change": change.max().item(),
        "agreed_percent": 100 * agreed / sum(map(len, answers[0])),
        "bytes_per_weight": FORMS[form].bytes,
        "kv_bytes_per_token": rounded.config.kv_bytes_per_token(rounded.dtype),
    }


def held_out(loaded: Loaded) -> list[int]:
    """Return the tokens of the texts, without code, tables, comments and addresses, in turn a paragraph of each.

    The bundled model can read no such English: it gets documents of the kind that it was trained on, but no such one.
    """
    if loaded.name == "bundled":
        return loaded.tokenizer("\n\n".join(document(i, "quantisation") for i in range(200)))["input_ids"]
    texts = [path.read_text(encoding="utf-8") for pattern in TEXTS for path in sorted(ROOT.glob(pattern))]
    paragraphs = [NO_PROSE.sub("", text).split("\n\n") for text in texts]
    most = max(map(len, paragraphs))
    turns = (text[i] for i in range(most) for text in paragraphs if i < len(text) and text[i].strip())
    return loaded.tokenizer("\n\n".join(turns))["input_ids"]


@torch.inference_mode()
def log_probabilities(engine: BaseEngine, token_ids: Tensor) -> Tensor:
    """Return the log-probability of each token behind those before it, but for the first, float64, on the CPU.

    The engine has no request: the tokens lie in its first pages.
    """
    count, page_size, device = len(token_ids), engine.cache.k.shape[2], engine.device
    ids, positions = token_ids.to(device), torch.arange(count, device=device)
    pages = list(range(-(-count // page_size)))
    batch = PagedBatch.pack([count], [count], [pages], positions, page_size)
    hidden = engine.model(ids, positions, engine.cache.bind(batch))
    scores = engine.model.logits(hidden[:-1]).double().log_softmax(-1)
    return scores.gather(1, ids[1:, None])[:, 0].cpu()


def first_difference(right: list[int], other: list[int]) -> int:
    """Return how many tokens both have in common before the first that differs."""
    return next((i for i, both in enumerate(zip(right, other, strict=False)) if len({*both}) > 1), len(right))


def measured(result: dict) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name and the figures of each form that was measured."""
    for side in SIDES:
        if side in result["sides"]:
            yield side, {name: figure["median"] for name, figure in result["sides"][side].items()}


def draw(document: dict, png: Path) -> None:
    forms = dict(measured(document))
    losses = [figures["more_than_float32_percent"] for figures in forms.values()]
    message = "Fewer bytes for each weight, and what they cost"
    remark = "Left: with its share of scales. Right: on held-out English, for weights as named."
    plain = {name: FORMS[name].bytes for name in FORMS}
    with plots.page(png, document, message, columns=2, remark=remark) as (left, right):
        for panel, values in ((left, plain), (right, dict(zip(forms, losses, strict=True)))):
            panel.barh(list(values), list(values.values()), color=plots.color(STAGE))
            for place, value in enumerate(values.values()):
                panel.annotate(
                    plots.short(value), (value, place), xytext=(3, 0), textcoords="offset points", va="center"
                )
            panel.invert_yaxis()
        plots.axes(left, "bytes of one weight", "")
        plots.axes(right, "perplexity, percent above float32", "")


def report(document: dict) -> dict[str, Rows]:
    header = ["weights, K and V", "perplexity", "above float32, %", "greedy tokens alike, %", "mean change", "largest"]
    rows = [header]
    for name, one in measured(document):
        few = (one["agreed_percent"], one["mean_change"], one["largest_change"])
        rows.append(
            [name, f"{one['perplexity']:.2f}", f"{one['more_than_float32_percent']:+.2f}", *map(plots.short, few)]
        )
    return {"quality": rows}


def loses_at_most(percent: float, *sides: str) -> bool:
    """Return a claim: each of the sides that was measured has at most so much more perplexity than float32."""

    def holds(document: dict) -> bool:
        return all(one["more_than_float32_percent"] <= percent for name, one in measured(document) if name in sides)

    return holds


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={side: partial(measure, side) for side in SIDES},
    sizes={"full": SIZES, "quick": {"text_tokens": 2048, "chats": 16}, "tiny": TINY},
    draw=draw,
    headline=Headline(
        "perplexity of held-out English",
        "",
        ("float32", "float32, K and V in 8 bits"),
        lambda sizes, side: side["perplexity"],
        more_is_better=False,
    ),
    seconds={"full": 600, "quick": 60},
    report=report,
    claims={
        "8 bits of K and V, or of weights, lose at most half a percent": loses_at_most(
            0.5, "float32, K and V in 8 bits", "int8"
        ),
    },
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
