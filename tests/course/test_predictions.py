"""The questions of `course.py predict`: their arithmetic done again by hand, and what they tell to reason with."""

from importlib import import_module

import pytest
import torch

from common.learn.predictions import CLOSE, Found, Question
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.stages import load_stage_module, stage_folders

NUMBERS = [folder.name[:2] for folder in stage_folders()]
CONFIG = read_config(find_checkpoint(None, with_weights=True))
WEIGHTS = 8 * (256 * 8 * 64 + 256 * 256 + 3 * 256 * 688)  # of all layers; embedding and head have 256 x 4,096

each_stage = pytest.mark.parametrize("number", NUMBERS)


def module_of(number: str):
    return import_module(f"common.learn.predictions.stage_{number}")


def flops(tokens: int) -> float:
    """The formula of lesson 01, with all pairs of a token and one that it sees."""
    return 2 * WEIGHTS * tokens + 4 * 8 * 256 * tokens * (tokens + 1) / 2 + 2 * 256 * 4096


def answer(tokens: int) -> float:
    return sum(flops(32 + i) for i in range(tokens))


def read(past: int) -> int:
    return 4 * (WEIGHTS + 256 * 4096) + 8192 * past


PASSES = load_stage_module("07", "benchmark").PASSES
LINEAR = [3 + n / 10 for n in PASSES]  # milliseconds
SIDES = {
    "01": {"01_naive": {}},
    "02": {
        "01_naive": {"ms_per_token": [12.0, 80.0, 150.0, 330.0]},
        "02_kv_cache": {"ms_per_token": [3.7, 4.0, 4.3, 4.7]},
    },
    "03": {"03_streaming": {"alone_first_text_seconds": [0.01], "alone_whole_answer_seconds": [0.98]}},
    "04": {
        "04_continuous_batching": {
            "itl_p50_ms": [4.0, 6.0, 8.0, 12.0],
            "prefill_ms_per_token": 0.1,
            "rows_per_output_token": [2.0, 2.0, 2.0, 2.0],
        }
    },
    "05": {
        "04_continuous_batching": {"step_total_ms": [4.0, 10.0]},
        "05_paged_attention": {"step_total_ms": [4.0, 9.0]},
    },
    "06": {},
    "07": {
        "07_speculative": {
            "curve_acceptance": [0.0, 80.0, 70.0, 60.0, 40.0],
            "curve_predicted": [1.0, 1.2, 1.3, 1.4, 1.5],
            "pass_ms": LINEAR,
            "draft_pass_ms": [0.5] * len(PASSES),
            "always_8_acceptance": [50.0, 50.0, 50.0],
        }
    },
    "08": {"07_speculative": {"full_piece_ms": 44.0, "itl_p50_ms": [8.0]}},
}
EXPECTED = {
    ("01", "tokens"): [sum(range(32, 96))],
    ("01", "step"): [flops(tokens) / flops(64) for tokens in (256, 512, 1024)],
    ("01", "answer"): [answer(256) / answer(64)],
    ("02", "sooner"): [(80 * answer(256) / flops(512)) / (4 * sum(map(read, range(32, 288))) / read(512))],
    ("02", "step"): [read(tokens) / read(64) for tokens in (512, 1024, 2048)],
    ("02", "memory"): [16.777216],
    ("03", "first"): [98],
    ("03", "last"): [100],
    ("03", "wait"): [4, 8, 16],
    ("03", "throughput"): [1, 1, 1],
    ("04", "throughput"): [n * 4 / (4 + 2 * (n - 1) * 0.1) for n in (4, 16, 32)],
    ("04", "gap"): [1.15, 1.75, 2.55],
    ("04", "pieces"): [100 * 10.3 / 107.1, 100 * 16.7 / 107.1, 100 * 29.5 / 107.1],
    ("05", "fit"): [4096 / 180],
    ("05", "waste"): [100 * 7.5 / 179.5, 100 * 31.5 / 203.5, 100 * 127.5 / 299.5],
    ("05", "throughput"): [4096 / 180 * 4 / 9],
    ("06", "sooner"): [2, 4, 10],
    ("06", "random"): [50],
    ("06", "in_turn"): [0],
    ("07", "tokens"): [1.8, 2.44, 3.3616, (1 - 0.8**9) / 0.2],
    ("07", "speedup"): [1.2, 1.3, 1.4, 1.5],
    ("07", "batch"): [5 * (3 + b / 10) / (3 + 9 * b / 10 + 8 * 0.5) for b in (1, 4, 16)],
    ("08", "together"): [5.5],
    ("08", "apart"): [1],
    ("08", "handoff"): [8.257536],
    ("08", "first"): [2],
}


@each_stage
def test_arithmetic_is_what_the_lesson_does_by_hand(number):
    module = module_of(number)
    found = Found(module.BENCHMARK.sizes_of("quick"), SIDES[number], CONFIG, torch.float32)
    for question in module.QUESTIONS:
        value = question.arithmetic(found)
        value = value if isinstance(value, list) else [value]
        assert value == pytest.approx(EXPECTED[number, question.name]), question.name
        assert len(value) == question.count(found.sizes)


@each_stage
def test_a_stage_has_a_few_questions_and_under_a_minute_to_measure_them(number):
    module = module_of(number)
    names = [question.name for question in module.QUESTIONS]
    assert 1 <= len(names) <= 4 and len({*names}) == len(names)
    assert 0 < module.BENCHMARK.seconds["quick"] < 60
    for size_set in ("quick", "tiny"):
        assert module.BENCHMARK.sizes[size_set].keys() <= module.BENCHMARK.sizes["full"].keys()
    for question in module.QUESTIONS:
        sizes = module.BENCHMARK.sizes_of("quick")
        assert "?" in question.ask.format(**sizes) and question.known.format(**sizes).endswith(".")


@pytest.mark.parametrize(
    ("arithmetic", "measured", "says"),
    [([10], [10 * (1 - CLOSE)], "agree"), ([0], [0], "agree"), ([10, 1], [10, 2], "more"), ([10, 2], [8, 1.9], "less")],
)
def test_why_speaks_of_where_they_differ_most(arithmetic, measured, says):
    question = Question("x", "", "", "", "", list, list, why_less="Low.", why_more="High.")
    told = question.why([1, 2][: len(measured)], arithmetic, measured, 0.0)
    assert says in told and ("High." in told) == (says == "more") and ("Low." in told) == (says == "less")
