"""Small models of every kind that common/model.py has, with random weights, and what one step of them needs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from common.loader import Loaded, load_model, weights
from common.model import ModelConfig, Transformer

SMALL = ModelConfig(
    vocab_size=97, hidden_size=48, intermediate_size=80, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
    context_length=64,
)  # fmt: skip
LLAMA_FILE = {  # a config.json
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": SMALL,
    "llama tied": replace(SMALL, tie_embeddings=True, rms_norm_eps=1e-2),
    "qwen3": replace(SMALL, qk_norm=True, head_dim=80, num_kv_heads=1, rms_norm_eps=1e-2),
    "qwen2": replace(SMALL, qkv_bias=True, num_kv_heads=4),
    "one layer, odd sizes": replace(SMALL, num_layers=1, hidden_size=37, intermediate_size=45, head_dim=6, num_heads=3,
                                    num_kv_heads=3, output_bias=True, qk_norm=True),
}  # fmt: skip


def random_model(config: ModelConfig, device="cpu", dtype=torch.float32) -> Transformer:
    model = weights.empty_model(config, torch.device(device), dtype)
    for name, parameter in model.named_parameters():
        parameter.copy_((1.0 if "norm" in name else 0.0) + 0.15 * torch.randn(parameter.shape))
    return model


def save_weights(loaded: Loaded, folder: Path) -> dict[str, torch.Tensor]:
    """Write the weights of a model without fused kernels as a checkpoint has them; return these tensors."""
    parameters = dict(loaded.model.named_parameters())
    names = weights.checkpoint_names(loaded.config)
    tensors = {tensor: parameters[name][rows].clone() for name, tensor, rows in names}
    save_file(tensors, folder / "model.safetensors")
    return tensors


def step_of(config: ModelConfig, device="cpu", count=9):
    """Return token ids and positions, both [count]."""
    return torch.randint(config.vocab_size, (count,), device=device), torch.randperm(64, device=device)[:count]


def refusal(error: type[Exception], *arguments, **options) -> str:
    """Return the error of `load_model`, checked to be a sentence on one line."""
    with pytest.raises(error) as caught:
        load_model(*arguments, device="cpu", **options)
    message = str(caught.value)
    assert "\n" not in message and not message.endswith(".") and len(message) < 600
    return message


def poison(monkeypatch, *modules) -> None:
    """Make fresh memory NaN in these modules, so that a place that a kernel leaves out shows."""

    def poisoned(make):
        return lambda *arguments, **options: make(*arguments, **options).fill_(float("nan"))

    ours = type("torch", (), {"__getattr__": lambda _, name: getattr(torch, name)})()
    ours.empty, ours.empty_like = poisoned(torch.empty), poisoned(torch.empty_like)
    for module in modules:
        monkeypatch.setattr(module, "torch", ours)
