"""The model computes what the reference implementation in transformers computes, for every family and every option.

Each test writes a small random checkpoint with transformers, loads it with `load_model`, and compares logits. Norms and
biases are random too: at their usual 1 and 0 a lost or misplaced one would not show.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from common.loader import load_model

VOCAB, LENGTH = 97, 80
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "yarn": YARN,
    "yarn-betas": YARN | {"beta_fast": 4.0, "beta_slow": 0.5},
    "yarn-no-truncation": YARN | {"beta_fast": 4.0, "truncate": False},
    "yarn-attention-factor": YARN | {"attention_factor": 1.7},
    "yarn-mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn-mscale-alone": YARN | {"mscale": 0.7},
}
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
    if family != "qwen2":  # Qwen2 has no such field: hidden_size / num_attention_heads, here 8
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


@pytest.fixture
def load(tmp_path):
    """A function from a transformers model to the course's model, by way of a checkpoint on disk."""

    def save_and_load(reference):
        reference.save_pretrained(tmp_path)
        return load_model(tmp_path, device="cpu").model

    return save_and_load


class CachedAttend:
    """One sequence, whole or in pieces: keeps K and V of the tokens seen so far."""

    def __init__(self):
        self.cache: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer in self.cache:
            past_k, past_v = self.cache[layer]
            k, v = torch.cat([past_k, k]), torch.cat([past_v, v])
        self.cache[layer] = k, v
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # [1, heads, tokens, D]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).squeeze(0).transpose(0, 1)


class RaggedAttend:
    """Several sequences end to end: give each its own rows."""

    def __init__(self, lengths: list[int], attends: list[CachedAttend]):
        self.lengths, self.attends = lengths, attends

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(self.attends, *(x.split(self.lengths) for x in (q, k, v)), strict=True)
        return torch.cat([attend(layer, *part) for attend, *part in parts])


def run(model, token_ids: Tensor, positions: Tensor, attend) -> Tensor:
    with torch.inference_mode():
        return model.logits(model(token_ids, positions, attend))


def random_tokens(length: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("family", "rope"), list(itertools.product(FAMILIES, ROPES)))
def test_logits_equal_those_of_transformers(family, rope, load):
    # 80 tokens where the scaled cases were "trained" on 32, so the positions that scaling is for are among them.
    reference = reference_model(family, options_of(family, rope))
    model = load(reference)
    token_ids, positions = random_tokens(LENGTH), torch.arange(LENGTH)
    with torch.inference_mode():
        expected = reference(token_ids.unsqueeze(0)).logits.squeeze(0)
    assert expected.std() > 0.5  # else the tolerance below would mean little

    in_one_call = run(model, token_ids, positions, CachedAttend())
    assert in_one_call.dtype == torch.float32 and in_one_call.shape == (LENGTH, VOCAB)
    torch.testing.assert_close(in_one_call, expected, atol=1e-4, rtol=0)

    attend = CachedAttend()
    one_by_one = [run(model, token_ids[i : i + 1], positions[i : i + 1], attend) for i in range(LENGTH)]
    torch.testing.assert_close(torch.cat(one_by_one), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("positions", [range(100, 128), [0, 3, 4, 9, 31, 32, 33, 64, 127]], ids=["late", "with gaps"])
def test_positions_need_not_begin_at_zero_or_be_consecutive(positions, load):
    reference = reference_model("llama", options_of("llama", "llama3"))
    model = load(reference)
    positions = torch.tensor(list(positions))
    token_ids = random_tokens(len(positions))
    with torch.inference_mode():
        expected = reference(token_ids.unsqueeze(0), position_ids=positions.unsqueeze(0)).logits.squeeze(0)
    torch.testing.assert_close(run(model, token_ids, positions, CachedAttend()), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_does_not_depend_on_its_batch(family, load):
    """A chunk in the middle of one prompt, the whole of another, and one new token of a third, in one call."""
    model = load(reference_model(family, options_of(family, "default")))
    sequences = [random_tokens(40, seed) for seed in range(3)]
    seen, now = [10, 0, 39], [20, 40, 1]
    expected, attends = [], []
    for sequence, past, new in zip(sequences, seen, now, strict=True):
        whole = run(model, sequence[: past + new], torch.arange(past + new), CachedAttend())
        expected.append(whole[past:])
        attends.append(CachedAttend())
        if past:
            run(model, sequence[:past], torch.arange(past), attends[-1])

    spans = [slice(past, past + new) for past, new in zip(seen, now, strict=True)]
    token_ids = torch.cat([sequence[span] for sequence, span in zip(sequences, spans, strict=True)])
    positions = torch.cat([torch.arange(40)[span] for span in spans])
    mixed = run(model, token_ids, positions, RaggedAttend(now, attends))
    torch.testing.assert_close(mixed, torch.cat(expected), atol=1e-5, rtol=0)
