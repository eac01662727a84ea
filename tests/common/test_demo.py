"""What the last line of a demo says of tokens that are not the reference's; and the memory of its engines."""

from dataclasses import replace
from math import prod
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from common import demo
from common.errors import InvalidInput
from common.stages import load_stage_module


def test_one_pass_finds_what_generate_gives(reference, prompts, monkeypatch):
    question = prompts[-3]
    right, beyond = (reference.generate(question, 20, ignore_eos=ignored) for ignored in (False, True))
    assert len(right) < 20 and beyond[: len(right)] == right, "it ends by itself"
    for answer in (beyond, [right[0] + 1, *right[1:]]):
        assert reference.generate_like(question, answer) == right
    monkeypatch.setattr(reference, "generate", None)
    assert reference.generate_like(question, right) == right


@pytest.mark.parametrize(
    ("ours", "dtype", "gap", "says"),
    [
        ([5, 6, 7], torch.float32, 0, "✓ all 3 greedy tokens"),
        ([5, 8, 7], torch.float32, 0, "✗ output token 2 of one is 8, but transformers' generate gives 6"),
        ([5, 6, 7, 9], torch.float32, 0, "✗ output token 4 of one is 9, but transformers' generate gives the end"),
        ([5, 8, 7], torch.bfloat16, 0.1, "✓ all 1 greedy tokens"),
        ([5, 8, 7], torch.bfloat16, 2.0, "✗ output token 2 of one is 8"),
    ],
)
def test_the_first_token_that_differs_is_named_but_for_near_ties(ours, dtype, gap, says, monkeypatch, capsys):
    logits = torch.zeros(9)
    logits[6] = gap
    reference = SimpleNamespace(generate_like=lambda *_: [5, 6, 7], next_logits=lambda token_ids: logits)
    monkeypatch.setattr(demo, "Reference", lambda *_: reference)
    request = SimpleNamespace(request_id="one", prompt_token_ids=[1], token_ids=ours)
    demo.check_against_reference(SimpleNamespace(name="any", device="cpu", kv_dtype=dtype), [request])
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("04", "show_batches"), ("04", "show_long_prompt"), ("06", "show_shared_text"), ("06", "show_conversation"),
        ("07", "compare"), ("08", "arrive"),
    ],
)  # fmt: skip
def test_engines_of_a_demo_fit_beside_the_one_that_has_taken_a_gpus_memory(stage, name, loaded, monkeypatch):
    """The context is as long as in real checkpoints, and a token has 147,456 bytes of K and V, as in Qwen3-8B."""
    long, taken = replace(loaded, config=replace(loaded.config, context_length=40_960)), []
    monkeypatch.setattr(type(loaded.config), "kv_bytes_per_token", lambda *_: 147_456)
    full = Mock(side_effect=InvalidInput("the GPU has no memory left for keys and values"))
    monkeypatch.setattr(load_stage_module(stage, "engine"), "kv_bytes_left", full)

    def zeros(shape, *where):
        numbers = loaded.config.num_layers * loaded.config.num_kv_heads * loaded.config.head_dim  # K of a token
        taken.append(prod(shape) // numbers * 147_456 // 2)
        return torch.zeros(shape, dtype=where[-1])

    monkeypatch.setattr(load_stage_module(stage, "kv_cache"), "zeros", zeros)
    module, script = load_stage_module(stage, "demo"), demo.script_for(loaded.name)
    if name == "arrive":
        worker = module.WorkerEngine(long, **module.options_for(long))
        answers, _ = module.arrive(worker, long, script, [5] * 900)
    else:
        answers = getattr(module, name)(long, *(("What is 2+2?", "lookup", 150) if name == "compare" else (script,)))
    assert all(answer.finish_reason for answer in answers)
    assert 0 < max(taken) <= 2**28, "half of 512 MiB: K or V"
