"""What bfloat16 changes: each stage's log-probabilities stay near those of the plain model in float32.

Each operation rounds by up to 1/256, and errors of dozens of operations in a row add up like random steps. Another
order of summation changes which way they go, but not how far. A wrong page or a missing token moves them by far more.
"""

from dataclasses import replace

import pytest
import torch

from common.bench.settings import engine_of
from common.bench.workloads import random_prompt
from common.checkpoints.corpus import document
from common.loader import load_model
from common.loader.weights import empty_model
from common.stages import load_stage_module
from tests.helpers.engine_options import endless
from tests.helpers.triton_marks import on_cpu

GPU = pytest.mark.gpu
CASES = [
    pytest.param((None, "auto", "cpu"), id="bundled-cpu", marks=on_cpu),
    pytest.param((None, "auto", "cuda"), id="bundled-cuda", marks=GPU),
    pytest.param(("Qwen3-0.6B", "dummy", "cuda"), id="qwen3-cuda", marks=GPU),
]
LENGTHS, ANSWER, TOKEN_BUDGET = (3, 17, 64, 100, 250, 411), 18, 64  # prompts in pieces, and pages of all fillings


@pytest.fixture(scope="module", params=CASES)
def models(request):
    """A model in bfloat16 as engines have it, and one of plain operations in float32 with the same weights."""
    name, load_format, device = request.param
    options = {"device": device, "dtype": "bfloat16", "load_format": load_format}
    plain = load_model(name, **options, fused=False)  # Fused models pack their weights on a CPU.
    exact = empty_model(plain.config, plain.device, torch.float32)
    exact.load_state_dict(plain.model.state_dict())
    loaded = load_model(name, **options)
    return replace(loaded, config=replace(loaded.config, context_length=1024)), exact  # shorter slots in stage 04


@pytest.mark.parametrize("stage", ["02", "04", "05", "07"])  # each attends in another way
@torch.no_grad()
def test_log_probabilities_in_bfloat16_are_near_those_in_float32(models, stage):
    loaded, exact = models
    options = {"max_running": 8, "token_budget": TOKEN_BUDGET, "kv_memory": "1G", "num_draft_tokens": 3}
    engine = engine_of(stage, loaded, **options)
    prompts = [random_prompt(length, loaded.config.vocab_size, f"logits {length}") for length in LENGTHS]
    if loaded.device.type == "cpu":
        prompts += [loaded.tokenizer(document(i, "logits"))["input_ids"][:n] for i, n in enumerate(LENGTHS)]
    attend = load_stage_module("01", "engine").causal_attention
    errors, likeliest = [], []
    answers = engine.generate(prompts, endless(ANSWER, logprobs=20))
    for prompt, answer in zip(prompts, answers, strict=True):
        text = torch.tensor(prompt + answer.token_ids, device=loaded.device)
        hidden = exact(text, torch.arange(len(text), device=loaded.device), attend)[len(prompt) - 1 : -1]
        expected = exact.logits(hidden).log_softmax(-1)
        for row, entry in zip(expected, answer.logprobs, strict=True):
            errors += [abs(row[token].item() - found) for token, found in entry.top]
            likeliest.append(abs(row.max().item() - dict(entry.top)[row.argmax().item()]))
    assert len(errors) == 20 * ANSWER * len(prompts)
    assert sum(errors) / len(errors) < 0.03 and max(errors) < 0.5, "probabilities, within 3 percent on average"
    if texts := likeliest[ANSWER * len(LENGTHS) :]:
        assert 0 < sum(texts) / len(texts) < 0.005 and max(texts) < 0.1, "as common/README.md says of ordinary texts"
