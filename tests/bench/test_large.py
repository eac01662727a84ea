"""Benchmarks of a real model: which sizes they take, which texts they send, and what their titles claim."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.bench.settings import Settings
from common.bench.suite import Suite
from common.bench.workloads import mixed_length_jobs, mixed_pages, page_prompt


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (Settings(device="cpu"), ["full", "quick"]),
        (Settings("Qwen3-0.6B", device="cpu", load_format="dummy"), ["large", "large-quick"]),
        (Settings("draft", device="cpu"), ["full", "quick"]),
    ],
)
def test_a_large_model_has_sizes_of_its_own_on_a_cpu(settings, names):
    assert [settings.size_set(name) for name in ("full", "quick")] == names
    assert [settings.size_set(name) for name in ("tiny", "predict", "gpu")] == ["tiny", "predict", "gpu"]
    files = {name: Suite([], settings, name, Path()).path.name for name in (*names, "full", "large")}
    assert len({*files.values()}) == len(files), "no set of sizes replaces the results of another"
    assert [files[name].removesuffix(".json").endswith("-quick") for name in names] == [False, True]


def test_no_prefix_cache_takes_prompts_for_each_other(loaded):
    prompts = [page_prompt(loaded, 40, f"document {i}") for i in range(30)]
    assert {len(prompt) for prompt in prompts} == {40} and len({tuple(prompt[:16]) for prompt in prompts}) == 30
    assert page_prompt(loaded, 40, "document 3") == prompts[3] and len(page_prompt(loaded, 60_000)) == 60_000
    jobs, others = mixed_pages(loaded, 9), mixed_length_jobs(9)
    assert [(len(job.prompt), job.max_tokens) for job in jobs] == [(len(job.prompt), job.max_tokens) for job in others]
    assert max(page_prompt(replace(loaded, tokenizer=None), 99)) > 1000, "without a tokenizer, any tokens"
