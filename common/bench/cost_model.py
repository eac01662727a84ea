"""What arithmetic says a step costs, from the sizes of the model alone.

A step has two costs, and the larger one sets its time: the arithmetic (FLOPs) of a prefill, which uses each weight
for every token, and the bytes of a decode step, which reads each weight for one token. A prediction becomes
milliseconds by a rate that is measured once, at one length; the plots show it as a dashed line.
"""

from typing import Any

import torch

from common.model import ModelConfig


def block_parameters(config: ModelConfig) -> int:
    """Count the elements of matrices that every token is multiplied with: all but embedding, head and norms."""
    qkv = config.hidden_size * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    output = config.num_heads * config.head_dim * config.hidden_size
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (qkv + output + mlp)


def head_parameters(config: ModelConfig) -> int:
    return config.hidden_size * config.vocab_size


def parameters(config: ModelConfig) -> int:
    """Count all parameters but the norms' and biases; an embedding that is also the head counts once."""
    embeddings = 1 if config.tie_embeddings else 2
    return block_parameters(config) + embeddings * head_parameters(config)


def step_flops(config: ModelConfig, tokens: int, past: int = 0) -> int:
    """Return the FLOPs of a step that runs `tokens` new tokens after `past` cached ones and samples from the last.

    A multiplication and its addition are two. A naive step of S tokens is step_flops(config, S).
    """
    weights = 2 * block_parameters(config) * tokens
    pairs = tokens * past + tokens * (tokens + 1) // 2  # A pair is a query and a key that it may see.
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * pairs  # q k^T, then the sum over v
    return weights + attention + 2 * head_parameters(config)


def decode_bytes(config: ModelConfig, past: int, dtype: torch.dtype) -> int:
    """Return the bytes that a decode step of one token reads: every weight once, K and V of the `past` tokens."""
    weights = (block_parameters(config) + head_parameters(config)) * dtype.itemsize
    return weights + past * config.kv_bytes_per_token(dtype)


def step_parts(
    config: ModelConfig, requests: int, context: float, dtype: torch.dtype, copy_rate: float, product_rate: float
) -> tuple[float, float, float]:
    """Return the seconds of a decode step of `requests` requests, `context` tokens before each, by its parts.

    They are reading every weight once, and all K and V, at copy_rate bytes per second, and the arithmetic at
    product_rate FLOPs per second.
    """
    weights = decode_bytes(config, 0, dtype)
    kv = round(requests * context) * config.kv_bytes_per_token(dtype)
    flops = requests * step_flops(config, 1, round(context))
    return weights / copy_rate, kv / copy_rate, flops / product_rate


def step_floor(*step: Any) -> float:
    """Return the seconds that a decode step takes at least, given as for `step_parts`: to read, or the arithmetic."""
    weights, kv, arithmetic = step_parts(*step)
    return max(weights + kv, arithmetic)
