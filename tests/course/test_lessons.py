"""The arithmetic in the lessons, done again; and what they point at exists."""

import json
import re
from itertools import pairwise

import pytest
import torch

from common.learn.stage_diff import compare
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.stages import ROOT, stage_folders

LESSONS = sorted(ROOT.glob("[0-9][0-9]_*/README.md"))


def lesson(number: str) -> str:
    [path] = ROOT.glob(f"{number}_*/README.md")
    return " ".join(path.read_text(encoding="utf-8").split())


def test_tokens_run_without_and_with_a_cache():
    def naive(prompt, answer):
        return sum(prompt + i for i in range(answer))

    assert naive(3, 4) == 18 and naive(32, 256) == 40_832 and round(40_832 / 256, 1) == 159.5
    assert "40,832" in lesson("01") and "159.5" in lesson("01") and "18 tokens" in lesson("01")
    assert 32 + 255 == 287 and round(40_832 / 287) == 142
    assert "40,832 / 287 = 142" in lesson("02")


def test_bytes_of_a_token_in_the_cache():
    def bytes_per_token(name, dtype):
        config = read_config(find_checkpoint(name, with_weights=name == "target"))
        return config.kv_bytes_per_token(dtype)

    assert bytes_per_token("target", torch.float32) == 8_192
    assert bytes_per_token("TinyLlama-1.1B", torch.float32) == 45_056 and 50 * 45_056 == 2_252_800
    assert bytes_per_token("Qwen2.5-14B", torch.bfloat16) == 196_608 and round(196_608 * 32_768 / 1e9, 1) == 6.4
    for number in ("8,192", "45,056", "2.25 MB", "196,608", "6.4 GB"):
        assert number in lesson("02")


def test_what_two_ranks_say_to_each_other():
    config = read_config(find_checkpoint("Qwen2.5-14B", with_weights=False))
    assert round(config.num_layers * 2 * config.hidden_size * torch.bfloat16.itemsize / 1e6, 2) == 0.98
    assert (config.num_layers, config.hidden_size) == (48, 5120)


def test_slots_and_pages():
    config = read_config(find_checkpoint("target", with_weights=True))
    slot = config.context_length * config.kv_bytes_per_token(torch.float32)
    assert (round(slot / 1e6, 1), round(8 * slot / 1e6), round(32 * slot / 1e9, 2)) == (33.6, 268, 1.07)
    assert round(100 * 100 / config.context_length, 1) == 2.4
    assert "33.6 MB" in lesson("04") and "1.07 GB" in lesson("04") and "268 MB" in lesson("05")
    assert 8 * 4096 == 32_768 and round(32_768 / (165.5 + 8)) == 189 and round(100 * 7.5 / (165.5 + 7.5), 1) == 4.3
    assert "32,768 places / (165.5 + 8) = 189" in lesson("05") and "7.5 / (165.5 + 7.5) = 4.3 percent" in lesson("05")
    assert -(-1000 // 16) - 1 == 62 and "62 pages" in lesson("06"), "the last page of 1,000 tokens is not full"


def test_what_draft_tokens_bring():
    powers = [0.8**i for i in range(5)]
    assert [round(power, 4) for power in powers[1:]] == [0.8, 0.64, 0.512, 0.4096] and round(sum(powers), 2) == 3.36
    assert round(3.36 / 2.2, 2) == 1.53 and round(1.6 + 4 * 0.15, 1) == 2.2
    low = sum(0.3**i for i in range(5))
    assert round(low, 2) == 1.43 and round(low / 2.2, 2) == 0.65
    p, q = (0.6, 0.3, 0.1), (0.3, 0.6, 0.1)
    accepted = [min(a, b) for a, b in zip(p, q, strict=True)]
    assert round(sum(accepted), 2) == 0.7 and round(accepted[0] + (1 - sum(accepted)), 2) == 0.6
    for text in ("0.4096 = 3.36", "3.36 / 2.2 = 1.53", "1.43 / 2.2 = 0.65", "0.3 + 0.3 + 0.1 = 70 percent"):
        assert text in lesson("07")


def test_pages_of_a_handoff():
    pages = -(-1000 // 16)
    assert pages == 63 and round(pages * 16 * 8_192 / 1e6, 2) == 8.26
    assert "63 pages of 16" in lesson("08") and "8.26 MB" in lesson("08") and -(-41 // 16) == -(-40 // 16) == 3


@pytest.mark.parametrize(
    ("stage", "figure", "digits"),
    [
        ("02", "speedup_at_256", 1),
        ("02", "decode_ratio_vs_transformers", 1),
        ("03", "first_text_speedup_at_longest_answer", 0),
        ("04", "throughput_ratio_at_32", 1),
        ("04", "continuous_over_static", 1),
        ("05", "throughput_ratio", 1),
        ("05", "ratio_vs_transformers_static", 1),
        ("06", "ttft_ratio_at_90", 1),
        ("06", "throughput_ratio_at_90", 1),
        ("07", "draft_model_speedup_at_1", 1),
        ("07", "lookup_speedup_copying", 1),
        ("08", "itl_p99_ratio", 1),
    ],
)
def test_headline_figures_are_those_of_the_results(stage, figure, digits):
    """For each machine measured, the lesson links the results that it quotes."""
    [folder] = ROOT.glob(f"{stage}_*/results")
    results = json.loads((folder / "cpu-amd-epyc-2-cores.json").read_text())
    assert f"{results['figures'][figure]['median']:.{digits}f} times" in lesson(stage)


@pytest.mark.parametrize("path", [ROOT / "README.md", *LESSONS], ids=lambda path: path.parent.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert target.startswith("http") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.parent.name)
def test_lessons_have_their_length_and_their_parts(path):
    text = re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)  # what a reader sees
    text = re.sub(r"^ +<details>.*?</details>", "", text, flags=re.DOTALL | re.MULTILINE)  # the answers to exercises
    assert 700 <= len(text.split()) <= 1800
    parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
    order = ["The problem", "The picture", "Run it", "Predict, then measure", "When it loses", "Exercises"]
    order += ["The same thing in vLLM and SGLang", "What we left out"]
    assert [part for part in parts if part in order] == order


def test_the_table_of_what_each_stage_added():
    """In lines of code, as `course.py diff` counts them."""
    readme, stages = (ROOT / "README.md").read_text(encoding="utf-8"), stage_folders()
    for before, stage in pairwise(stages):
        changes = compare(before, stage)
        new = [change.added for change in changes if change.kind == "new"]
        added, removed = (
            sum(one) for one in zip(*((c.added, c.removed) for c in changes if c.kind == "changed"), strict=True)
        )
        row = f"| {stage.name[:2]} | {len(new)} with {sum(new)} lines | +{added} -{removed} |"
        assert row in readme, row
