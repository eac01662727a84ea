"""Do all stages say the same on this device? Token for token in float32, and closely in bfloat16.

Method. The contract suite for each stage, in processes side by side: nothing is timed here. In bfloat16 rounding may
change a token and with it all that follow, so logits are compared: each stage runs the same prompts together, in pieces
of a small token budget, through its own attention and its own memory, and decodes; after every step the token that it
has chosen is replaced by that of a given text, which the plain model in float32 reads as well. What is compared are the
scores of the whole vocabulary at every step, by the norm of the difference over that of the reference.

Expectation. bfloat16 has 8 bits, so each operation rounds by up to 1/256; errors of dozens of operations in a row add
up like random steps, to between 0.5 and 2 percent. Another order of summation changes which way they go, but not how
far, so that every stage should be as far from float32 as stage 01, which has no cache. A wrong page or a missing token
shows as tens of percent.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from common.bench import plots
from common.bench.harness import Benchmark, Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.timing import free_memory
from common.bench.workloads import random_prompt
from common.engine import BaseEngine
from common.loader import load_model
from common.loader.weights import empty_model
from common.model import ModelConfig, Transformer
from common.request import Request
from common.sampling import SamplingParams
from common.stages import load_stage_module, stage_folders

from .suites import run_pytest

SIZES = {
    "stages": [folder.name for folder in stage_folders() if folder.name < "08"],
    # As a GPU has them by default, in the words of tests/conftest.py.
    "around": ["05_paged_attention+overlap+graphs", "06_prefix_cache+overlap+graphs", "07_speculative+graphs"],
    "select": [],
    "models": ["bundled", "Qwen3-0.6B"],
    "prompts": [3, 17, 64, 100, 250, 411],  # tokens
    "decoded": 12,  # tokens, after each prompt
    "token_budget": 64,
    "most": 0.03,  # relative error that is still rounding
}
TINY = {
    "stages": ["06_prefix_cache"],
    "around": [],
    "select": ["-k", "test_generate_takes_one"],
    "models": ["bundled"],
    "prompts": [3, 40],
    "decoded": 3,
    "token_budget": 16,
}
# Eager and step by step, so that scores and tokens can be looked at between two steps. draft: for stage 07.
STEP_BY_STEP = {"graphs": False, "overlap": False, "draft": "lookup", "num_draft_tokens": 0}


def measure_contract(settings: Settings, sizes: dict) -> Figures:
    """Count tests passed and skipped, of each stage, and of those that have graphs and the overlapped loop around it.

    Processes run side by side, each with two cores. Raise ValueError with the failures if there are any.
    """
    stages = [*sizes["stages"], *sizes["around"]]
    arguments = ["tests/test_contract.py", "--device", settings.place()[0].type, *sizes["select"]]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        tests = list(pool.map(lambda stage: run_pytest([*arguments, "--engine", stage]), stages))
    failures = [f"{stage} {said}" for stage, counts in zip(stages, tests, strict=True) for said in counts["failures"]]
    if failures:
        raise ValueError(f"{len(failures)} tests of the contract fail: {'; '.join(failures)}")
    return {key: [counts[key] for counts in tests] for key in ("passed", "skipped")}


# ---- Logits ----


def measure_logits(settings: Settings, sizes: dict) -> Figures:
    """Return for each model and stage how far its logits in bfloat16 are from the plain model's in float32.

    Raise ValueError if that is more than rounding.
    """
    figures: Figures = {}
    for model in sizes["models"]:
        named = {"model": None} if model == "bundled" else {"model": model, "load_format": "dummy"}
        errors = figures[f"relative_error_{model}"] = logit_errors(replace(settings, dtype="bfloat16", **named), sizes)
        if not all(error <= sizes["most"] for error in errors):  # a NaN is no pass
            found = ", ".join(f"{stage} {error:.3g}" for stage, error in zip(sizes["stages"], errors, strict=True))
            raise ValueError(f"{model}: logits in bfloat16 are off by {found}; {sizes['most']} is the limit")
    return figures


def logit_errors(settings: Settings, sizes: dict) -> list[float]:
    loaded = settings.load(context_length=1024)  # stage 04 has a slot for a whole context of every request
    device = loaded.device
    plain = empty_model(loaded.config, device, torch.float32)  # of plain operations, whatever `loaded` has
    weights = loaded.model.state_dict()
    if device.type == "cpu":  # `loaded` has packed ones, which nothing else can read
        options = {"device": device, "dtype": loaded.dtype, "load_format": settings.load_format, "fused": False}
        weights = load_model(settings.model, **options).model.state_dict()
    plain.load_state_dict(weights)  # the same ones: bfloat16 fits into float32
    del weights
    vocab_size, decoded = loaded.config.vocab_size, sizes["decoded"]
    texts = [random_prompt(length + decoded, vocab_size, f"logits {length}") for length in sizes["prompts"]]
    pairs = [(text[:-decoded], text) for text in texts]
    wanted = torch.cat([scores(plain, text[:-1], len(prompt) - 1, device) for prompt, text in pairs])  # [positions, V]
    del plain
    errors = []
    for stage in sizes["stages"]:
        options = STEP_BY_STEP | {"max_running": 8, "token_budget": sizes["token_budget"], "kv_memory": "1G"}
        engine = engine_of(stage, loaded, **options)
        errors.append(relative_error(torch.cat(forced_logits(engine, pairs)), wanted))
        print(f"{settings.model}, {stage}: logits in bfloat16 are {errors[-1]:.4f} from float32", file=sys.stderr)
        del engine
        free_memory(device)
    return errors


@torch.inference_mode()
def scores(model: Transformer, text: Sequence[int], first: int, device: torch.device) -> Tensor:
    """Return logits `[len(text) - first, V]` after each token of the text from place `first` on, nothing cached."""
    token_ids, attend = torch.tensor(text, device=device), load_stage_module("01", "engine").causal_attention
    hidden = model(token_ids, torch.arange(len(text), device=device), attend)
    return model.logits(hidden[first:])


def forced_logits(engine: BaseEngine, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Tensor]:
    """Return the engine's logits, `[decoded, V]` for each pair of a prompt and the text that it is made to write.

    All prompts run together. Logits are taken from `model.logits`, whose rows are in the order of the requests that the
    step returns, in every stage.
    """
    wanted = {
        engine.add(prompt, SamplingParams(max_tokens=len(text) - len(prompt), ignore_eos=True)): text
        for prompt, text in pairs
    }
    found: dict[Request, list[Tensor]] = {request: [] for request in wanted}
    seen: list[Tensor] = []
    original = engine.model.logits
    engine.model.logits = lambda hidden: seen.append(original(hidden)) or seen[-1]
    try:
        while engine.has_unfinished:
            seen.clear()
            gained = engine.step()
            rows = torch.cat(seen) if seen else []
            if len(rows) != len(gained):
                raise ValueError(f"{len(gained)} requests gained tokens from {len(rows)} rows of logits")
            for request, row in zip(gained, rows, strict=True):
                found[request].append(row.float())
                request.token_ids[-1] = wanted[request][request.num_tokens - 1]
    finally:
        del engine.model.logits  # the method of the class is there again
    return [torch.stack(found[request]) for request in wanted]


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Return the norm of the difference over the norm of the reference, in float64."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


# ---- The plot ----


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    logits = measured["bfloat16"]
    return {"worst_relative_error": max(max(errors) for errors in logits.values())}


def draw(document: dict, png: Path) -> None:
    sizes, sides = document["sizes"], document["sides"]
    stages, worst = sizes["stages"], document["figures"]["worst_relative_error"]["median"]
    message = f"In float32 no test fails; in bfloat16 logits are off by {100 * worst:.2g} percent at most"
    remark = (
        "Left: tests of the contract that pass, tokens compared with transformers. Right: norm of the difference to "
        f"the plain model in float32\nover its norm, at {len(sizes['prompts']) * sizes['decoded']} positions, prompts "
        f"run in pieces of {sizes['token_budget']} tokens; the dashed line is the limit."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as (tests, logits):
        labels, passed = [stage[:2] for stage in stages], sides["contract"]["passed"]["median"]
        plots.bars(tests, stages, [{key: n for key in ("median", "min", "max")} for n in passed[: len(stages)]], labels)
        plots.axes(tests, "stage", "tests", "Contract suite, float32")
        places = range(len(stages))
        for i, model in enumerate(sizes["models"]):
            percents = [100 * error for error in sides["bfloat16"][f"relative_error_{model}"]["median"]]
            marker, tint = "os"[i % 2], plots.COLORS["05" if i else "04"]
            logits.plot(places, percents, marker, color=tint, label=model, markersize=8)
        limit = [100 * sizes["most"]] * len(stages)
        logits.plot(places, limit, "--", color=plots.PREDICTION, linewidth=1.3, label="limit")
        logits.set_xticks(list(places), labels)
        plots.axes(logits, "stage", "percent", "Relative error of logits, bfloat16")


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={"contract": measure_contract, "bfloat16": measure_logits},
    sizes={"full": SIZES, "tiny": TINY},
    derive=derive,
    draw=draw,
    seconds={"gpu": 75},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
