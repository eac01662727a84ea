"""Do all stages say the same on this device? Token for token in float32, and closely in bfloat16.

Method. The contract suite for each stage, in processes side by side: nothing is timed here. In bfloat16 rounding may
change a token and with it all that follow, so logits are compared: each stage runs the same prompts together, in pieces
of a small token budget, through its own attention and its own memory, and decodes; after every step the token that it
has chosen is replaced by the one that the plain model in float32 has chosen, so that both read the same text. What is
compared are the scores of the whole vocabulary at every step, by the norm of the difference over that of the reference.

Expectation. bfloat16 has 8 bits, so each operation rounds by up to 1/256; errors of dozens of operations in a row add
up like random steps, to between 0.5 and 2 percent. Another order of summation changes which way they go, but not how
far, so that every stage should be as far from float32 as stage 01, which has no cache. A wrong page or a missing token
shows as tens of percent.
"""

import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.bench import plots
from common.bench.workloads import random_prompt
from common.engine import BaseEngine
from common.loader.weights import empty_model
from common.model import Transformer
from common.request import Request
from common.sampling import SamplingParams
from common.stages import load_stage_module, stage_folders

from .run import Run, free_memory
from .suites import in_words, run_pytest

SIZES: dict[str, Any] = {
    "stages": [folder.name for folder in stage_folders() if folder.name < "08"],
    "around": ["06_prefix_cache+overlap+graphs"],  # as tests/conftest.py knows it
    "select": [],
    "models": ["bundled", "Qwen3-0.6B"],
    "prompts": [3, 17, 64, 100, 250, 411],  # tokens
    "decoded": 12,  # tokens, after each prompt
    "token_budget": 64,
    "most": 0.03,  # relative error that is still rounding
}
TINY = SIZES | {
    "stages": ["03_streaming", "06_prefix_cache"],
    "around": [],
    "select": ["-k", "test_a_long_prompt or test_generate_takes_one"],
    "models": ["tiny"],
    "prompts": [3, 40],
    "decoded": 3,
    "token_budget": 16,
}
# Eager and step by step, so that scores and tokens can be looked at between two steps. draft: for stage 07.
STEP_BY_STEP = {"graphs": False, "overlap": False, "draft": "lookup", "num_draft_tokens": 0}


def measure(run: Run) -> None:
    errors: dict[str, dict[str, Any]] = {}
    for model in run.sizes["models"]:
        errors[model] = compare_logits(run, model)
        run.keep(bfloat16=errors)
    run.keep(accelerated=same_tokens_around(run))
    run.document["settings"]["dtype"] = "float32 and bfloat16"
    tests = contract_of_all(run)
    each = [error["relative_error"] for stages in errors.values() for error in stages.values()]
    passed = sum(counts["passed"] for counts in tests.values())
    failed = {stage: counts for stage, counts in tests.items() if counts["failed"] or counts["errors"]}
    run.headline(
        passed=passed,
        failed=sum(counts["failed"] + counts["errors"] for counts in failed.values()),
        worst_bfloat16_error=max(each),
    )
    if wrong := [stage for stage, same in run.document["figures"]["accelerated"].items() if not same]:
        raise ValueError(f"with graphs and overlap, other tokens come from {', '.join(wrong)} in float32")
    if failed:
        stage, counts = next(iter(failed.items()))
        raise ValueError(f"the contract fails in {', '.join(failed)}; the first: {stage} {counts['failures'][0]}")
    if not all(error <= run.sizes["most"] for error in each):  # a NaN is no pass
        raise ValueError(f"logits in bfloat16 are up to {max(each):.3g} from float32; {run.sizes['most']} is the limit")


def contract_of_all(run: Run) -> dict[str, dict[str, Any]]:
    """The suite's counts for each stage, and for one with graphs and the overlapped loop. Processes side by side, each
    with two cores."""
    stages = [*run.sizes["stages"], *run.sizes["around"]]
    arguments = ["tests/test_contract.py", "--device", run.device.type, *run.sizes["select"]]
    tests: dict[str, dict[str, Any]] = {}

    def of_stage(stage: str) -> None:
        tests[stage] = run_pytest([*arguments, "--engine", stage], run.log(stage))
        run.say(f"{stage}: {in_words(tests[stage])}")

    try:
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
            list(pool.map(of_stage, stages))  # the list raises what a thread raised
    finally:
        run.keep(float32={stage: tests[stage] for stage in stages if stage in tests})
    return tests


def same_tokens_around(run: Run) -> dict[str, bool]:
    """Whether the stages from 05 on say in float32 what stage 02 says, with graphs and the overlapped loop around them
    as a GPU has them."""
    loaded = run.load("bundled", torch.float32)
    prompts = [random_prompt(length, loaded.config.vocab_size, f"tokens {length}") for length in run.sizes["prompts"]]
    params = SamplingParams(max_tokens=2 * run.sizes["decoded"], ignore_eos=True)
    wanted = [request.token_ids for request in run.engine("02", loaded).generate(prompts, params)]
    same = {}
    for stage in (stage for stage in run.sizes["stages"] if stage >= "05"):
        engine = run.engine(stage, loaded, max_running=8, kv_memory="1G")
        same[stage] = [request.token_ids for request in engine.generate(prompts, params)] == wanted
        run.say(f"{stage} as it runs on a GPU: {'the same' if same[stage] else 'OTHER'} tokens; {engine.startup_notes}")
        del engine
        free_memory(run.device)
    return same


# ---- Logits ----


def compare_logits(run: Run, model: str) -> dict[str, dict[str, Any]]:
    """For each stage how far its logits in bfloat16 are from those of the plain model in float32."""
    loaded = run.load(model, torch.bfloat16)
    # Stage 04 has a slot for a whole context for everybody.
    loaded.config = replace(loaded.config, context_length=min(loaded.config.context_length, 1024))
    plain = empty_model(loaded.config, run.device, torch.float32)  # of plain operations, whatever `loaded` has
    plain.load_state_dict(loaded.model.state_dict())  # the same weights: bfloat16 fits into float32
    prompts = [random_prompt(length, loaded.config.vocab_size, f"logits {length}") for length in run.sizes["prompts"]]
    texts = [greedy_text(plain, prompt, run.sizes["decoded"], run.device) for prompt in prompts]
    pairs = list(zip(prompts, texts, strict=True))
    references = [scores(plain, text[:-1], len(prompt) - 1, run.device) for prompt, text in pairs]
    del plain
    errors = {}
    for stage in run.sizes["stages"]:
        options = STEP_BY_STEP | {"max_running": 8, "token_budget": run.sizes["token_budget"], "kv_memory": "1G"}
        engine = run.engine(stage, loaded, **options)
        found, wanted = torch.cat(forced_logits(engine, pairs)), torch.cat(references)  # [positions, V]
        each = [relative_error(*rows) for rows in zip(found, wanted, strict=True)]
        errors[stage] = {
            "relative_error": relative_error(found, wanted),
            "median_of_positions": statistics.median(each),
            "worst_position": max(each),
            "positions": len(each),
            "attention": engine.startup_notes,
        }
        run.say(f"{model}, {stage}: logits in bfloat16 are {errors[stage]['relative_error']:.4f} from float32")
        del engine
        free_memory(run.device)
    return errors


def attention_of_stage_01():
    return load_stage_module("01", "engine").causal_attention


@torch.inference_mode()
def scores(model: Transformer, text: Sequence[int], first: int, device: torch.device) -> Tensor:
    """Logits `[len(text) - first, V]` after each token of the text from place `first` on, nothing cached."""
    token_ids = torch.tensor(text, device=device)
    hidden = model(token_ids, torch.arange(len(text), device=device), attention_of_stage_01())
    return model.logits(hidden[first:])


def greedy_text(model: Transformer, prompt: Sequence[int], tokens: int, device: torch.device) -> list[int]:
    """The prompt and so many greedy tokens behind it."""
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(scores(model, text, len(text) - 1, device).argmax()))
    return text


def forced_logits(engine: BaseEngine, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Tensor]:
    """What the engine scores, `[decoded, V]` for each pair of a prompt and the text that it is made to write from it.

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
    """The norm of the difference over the norm of the reference, in float64."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


# ---- The plot ----


def draw(document: dict, png: Path, others: dict[str, dict]) -> None:
    figures, sizes = document["figures"], document["sizes"]
    stages = sizes["stages"]
    failed = sum(counts["failed"] + counts["errors"] for counts in figures["float32"].values())
    worst = max(error["relative_error"] for errors in figures["bfloat16"].values() for error in errors.values())
    message = f"In float32 {failed or 'no'} tests fail; in bfloat16 logits are off by {100 * worst:.2g} percent at most"
    remark = (
        "Left: tests of the contract that pass, tokens compared with transformers. Right: norm of the difference to "
        f"the plain model in float32\nover its norm, at {len(sizes['prompts']) * sizes['decoded']} positions, prompts "
        f"run in pieces of {sizes['token_budget']} tokens; the dashed line is the limit."
    )
    with plots.page(png, document, message, columns=2, remark=remark) as (tests, logits):
        labels = [stage[:2] for stage in stages]
        passed = [{key: figures["float32"][stage]["passed"] for key in ("median", "min", "max")} for stage in stages]
        plots.bars(tests, stages, passed, labels)
        plots.axes(tests, "stage", "tests", "Contract suite, float32")
        places = range(len(stages))
        for i, (model, errors) in enumerate(figures["bfloat16"].items()):
            percents = [100 * errors[stage]["relative_error"] for stage in stages]
            marker = "os"[i % 2]
            logits.plot(places, percents, marker, color=plots.COLORS["05" if i else "04"], label=model, markersize=8)
        logits.plot(
            places, [100 * sizes["most"]] * len(stages), "--", color=plots.PREDICTION, linewidth=1.3, label="limit"
        )
        logits.set_xticks(list(places), labels)
        plots.axes(logits, "stage", "percent", "Relative error of logits, bfloat16")
