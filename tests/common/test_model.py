"""The model computes what the reference implementation in transformers computes, for every family and every option.

Each test writes a small random checkpoint with transformers, loads it with `load_model`, and compares logits. Norms and
biases are random too: at their usual 1 and 0 a lost or misplaced one would not show.
"""

import itertools

import pytest
import torch

from common.learn.milestones.stage_under_test import causal_attention
from common.loader import load_model
from tests.helpers import helper_file

VOCAB, LENGTH = 97, 80
ROPES = helper_file("configs.json")["ropes"]
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def options_of(family: str, rope: str) -> dict:
    """config.json of a case. The options turn at different rates, so that each family meets all values of each."""
    turn = list(ROPES).index(rope)
    options = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": (2, 8, 4, 1)[turn % 4],
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-2,  # large enough to show if it is lost
        "rope_parameters": dict(ROPES[rope]),
        "tie_word_embeddings": turn % 2 == 0,
    }
    if family != "qwen2":  # Qwen2 has no head_dim: it is hidden_size / num_attention_heads, here 8.
        options["head_dim"] = (8, 16, 32)[turn % 3]
    if family in ("llama", "qwen3"):
        options["attention_bias"] = turn // 2 % 2 == 0
    if family == "mistral":
        options["sliding_window"] = None
    return options


def reference_model(family: str, options: dict):
    """A transformers model with every parameter random, in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **options), attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.normal_(mean=1.0 if "norm" in name else 0.0, std=0.15)
    return reference.float().eval()


@pytest.mark.parametrize(("family", "rope"), list(itertools.product(FAMILIES, ROPES)))
def test_logits_equal_those_of_transformers(family, rope, tmp_path):
    # 80 tokens where the scaled cases were "trained" on 32, so the positions that scaling is for are among them.
    reference = reference_model(family, options_of(family, rope))
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu").model
    token_ids = torch.randint(VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = reference(token_ids.unsqueeze(0)).logits.squeeze(0)
        logits = model.logits(model(token_ids, torch.arange(LENGTH), causal_attention))
    assert expected.std() > 0.5  # else the tolerance below would mean little
    assert logits.dtype == torch.float32 and logits.shape == (LENGTH, VOCAB)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
