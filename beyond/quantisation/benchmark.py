"""What do fewer bits cost? Each form of weights, with K and V as the model has them and in 8 bits, against float32.

Method. Every form reads held-out English (lessons, the glossary, the model card and the licence of this repository) in
windows, 16 tokens a step, through the pages of stage 06, and so does float32 in the same process: the perplexity of
both, and by how much each token's log-probability differs. Then stage 06 answers 64 chats with both, greedily: the
share of float32's tokens that come before the first one that differs. Rounding needs no examples, so no form has seen
any of these texts. A last side times decoding with each form of weights, five times in turn, 1, 8 and 32 requests at
once, from 64 tokens to 128. In bfloat16 rows are rounded to 8 bits, too, where codes are multiplied with them
(common/fused/codes.py).

Expectation. 8 bits divide each row by 127 steps of its largest number, and change little. With 4 bits and 16 steps for
each 32 weights the text gets a few percent less likely. A model that is shipped in 4 bits has lost that already, and
all other forms are measured against what is left: see the bundled model for the whole loss. Greedy answers part sooner
than perplexity suggests: one near tie decided otherwise, and all that follows is another text. A step of one request
takes as long as its weights take to be read; one of 32 computes more than it reads, and fewer bytes help little.
"""

import math
import re
import statistics
import sys
import time
from contextlib import suppress
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
from common.bench.ceilings import read_bytes_per_second
from common.bench.cost_model import parameters
from common.bench.documents import medians
from common.bench.harness import Benchmark, Figures, Unavailable
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.tables import Rows
from common.bench.workloads import random_prompt
from common.checkpoints.corpus import document
from common.checkpoints.unseen import QUESTIONS
from common.engine import BaseEngine
from common.loader import Loaded, chat_prompt, load_model
from common.sampling import SamplingParams
from common.stages import load_engine

STAGE = "06_prefix_cache"
FEW = 16  # tokens of a step
SAME = 0.001  # largest change of a log-probability if two forms hold the same numbers
TEXTS = ("0*/README.md", "GLOSSARY.md", "common/checkpoints/README.md", "LICENSE")
NO_PROSE = re.compile(r"^```.*?^```|^\|.*?$|<!--.*?-->|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


class Form(NamedTuple):
    """How weights are kept: options of `load_model`, and the bytes of one weight with its share of scales."""

    options: dict[str, str]
    bytes: float


FORMS = {  # In 8 and 4 bits, a group of 32 weights has a scale of 2 bytes; in 4 bits also a minimum of 2 bytes.
    "float32": Form({"dtype": "float32", "quantization": "none"}, 4),
    "bfloat16": Form({"dtype": "bfloat16", "quantization": "none"}, 2),
    "int8": Form({"dtype": "float32", "quantization": "int8"}, 1 + 2 / 32),
    "int4": Form({"dtype": "float32", "quantization": "int4"}, 1 / 2 + 4 / 32),
    "as shipped": Form({"dtype": "float32", "quantization": "auto"}, 1 / 2 + 4 / 32),  # SmolLM2's file is Q4_1
    "int8 in bfloat16": Form({"dtype": "bfloat16", "quantization": "int8"}, 1 + 2 / 32),
    "int4 in bfloat16": Form({"dtype": "bfloat16", "quantization": "int4"}, 1 / 2 + 4 / 32),
}
KV = {"auto": "", "int8": " with 8-bit K and V"}  # The name of a side must have no comma and no slash.
SIDES = {f"{form}{more}": (form, kv) for (kv, more), form in product(KV.items(), FORMS)}


def load(settings: Settings, form: str, kv_dtype: str = "auto") -> Loaded:
    """Return the model in this form. Raise Unavailable where there is no such form of it."""
    if form == "as shipped" and not settings.folder().is_file():
        raise Unavailable("only a GGUF file holds quantised weights")
    options = FORMS[form].options | {"device": settings.device, "load_format": settings.load_format}
    return load_model(settings.model, **options, kv_dtype=kv_dtype)


def measure(side: str, settings: Settings, sizes: dict) -> Figures:
    """Compare one form with float32."""
    form, kv_dtype = SIDES[side]
    rounded, exact = load(settings, form, kv_dtype), load(settings, "float32")
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
    }


def measure_decode(settings: Settings, sizes: dict) -> Figures:
    """Time decoding with each form of weights, and how fast this machine reads."""
    config = settings.config()
    count, embedding = parameters(config), config.vocab_size * config.hidden_size
    figures: Figures = {"read_bytes_per_second": read_bytes_per_second(settings.place()[0], min(4 * count, 2**29))}
    rounds: dict[str, list[list[float]]] = {}
    for form in [*FORMS] * sizes["rounds"]:  # The forms take turns, since other programs share the machine.
        with suppress(Unavailable):
            engine = engine_of(STAGE, load(settings, form))
            rounds.setdefault(form, []).append([decode_rate(engine, number, sizes) for number in sizes["requests"]])
    for form, rates in rounds.items():
        in_8_bits = embedding * max(0, FORMS["int8"].bytes - FORMS[form].bytes)  # The embedding never has 4 bits.
        figures[f"{form}_tokens_per_second"] = [statistics.median(column) for column in zip(*rates, strict=True)]
        figures[f"{form}_bytes"] = FORMS[form].bytes * count + in_8_bits
    return figures


def decode_rate(engine: BaseEngine, requests: int, sizes: dict) -> float:
    """Return tokens per second once all requests decode: the better of two runs, of which the first may warm up."""
    params, rates = SamplingParams(max_tokens=sizes["output"], ignore_eos=True), []
    for run in range(2):
        prompts = [random_prompt(sizes["prompt"], 4096, f"{run}/{i}") for i in range(requests)]
        added = [engine.add(prompt, params) for prompt in prompts]
        while not all(request.token_ids for request in added):
            engine.step()
        before, start = sum(len(request.token_ids) for request in added), time.perf_counter()
        while engine.has_unfinished:
            engine.step()
        rates.append((requests * sizes["output"] - before) / (time.perf_counter() - start))
    return max(rates)


def held_out(loaded: Loaded) -> list[int]:
    """Return the tokens of the texts, without code, tables, comments and addresses, in turn a paragraph of each.

    The bundled model cannot read such English. It gets new documents of the kinds that it was trained on.
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
    """Return the log-probability of each token but the first, given those before it: float64, on the CPU.

    Few tokens at a time, so that products are those of decoding. The engine has no request: the tokens lie in its first
    pages.
    """
    page_size, device, ids = engine.cache.k.shape[2], engine.device, token_ids.to(engine.device)
    pages, scores = list(range(-(-len(ids) // page_size))), []
    for positions in torch.arange(len(ids), device=device).split(FEW):
        length = int(positions[-1]) + 1
        batch = PagedBatch.pack([len(positions)], [length], [pages], positions, page_size)
        hidden = engine.model(ids[positions], positions, engine.cache.bind(batch))
        scores.append(engine.model.logits(hidden).double().log_softmax(-1))
    return torch.cat(scores)[:-1].gather(1, ids[1:, None])[:, 0].cpu()


def first_difference(right: list[int], other: list[int]) -> int:
    """Return how many tokens both have in common before the first that differs."""
    return next((i for i, both in enumerate(zip(right, other, strict=False)) if len({*both}) > 1), len(right))


def draw(document: dict, png: Path) -> None:
    _, sides, _ = medians(document)
    losses = {name: loss(sides[name]) for name in SIDES if name in sides}
    most = max(percent for name, percent in losses.items() if not name.startswith(("int4", "as shipped")))
    message = f"8 bits for weights, K and V raise perplexity by at most {most:.1f} percent"
    remark = "A file that was shipped with 4 bits, as SmolLM2's, loses nothing more by them." * ("as shipped" in losses)
    with plots.page(png, document, message, height=6.4, remark=remark) as (panel,):
        spread = [dict.fromkeys(("median", "min", "max"), percent) for percent in losses.values()]
        plots.bars(panel, [STAGE] * len(losses), spread, [*losses], lying=True)
        panel.spines["left"].set_visible(False)
        panel.axvline(0, color=plots.EDGE, linewidth=1)
        panel.set_title("Perplexity of held-out English, percent above float32", loc="left")


def loss(figures: Figures) -> float:
    return round(figures["more_than_float32_percent"], 2) + 0.0  # 0, not -0


def report(document: dict) -> dict[str, Rows]:
    """Return what each form costs, and how fast it decodes beside what the machine's memory allows one request.

    A form that holds float32's numbers, such as 4 bits of a model that is shipped in them, has no row of its own.
    """
    quality = [["weights", "perplexity", "above float32, %", "greedy tokens alike, %", "mean change", "largest change"]]
    sizes, sides, _ = medians(document)
    same = [form for form in FORMS if form != "float32" and sides.get(form, {}).get("largest_change", 1) < SAME]
    for name, (form, _) in SIDES.items():
        if name in sides and form not in same:
            one = sides[name]
            changes = (one["agreed_percent"], one["mean_change"], one["largest_change"])
            quality.append([name, f"{one['perplexity']:.2f}", f"{loss(one):+.2f}", *map(plots.short, changes)])
    decode = [["weights", "predicted, 1 request", *(f"{count} at once" for count in sizes["requests"])]]
    figures = sides.get("decode", {})
    for form in FORMS:
        if rates := figures.get(f"{form}_tokens_per_second"):
            most = figures["read_bytes_per_second"] / figures[f"{form}_bytes"]
            decode.append([form, *map(plots.short, [most, *rates])])
    return {"quality": quality, "decode": decode}


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={side: partial(measure, side) for side in SIDES} | {"decode": measure_decode},
    draw=draw,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
