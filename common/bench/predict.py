"""What arithmetic says a step costs, from the sizes of the model alone, and what the machine could do at best.

A step has two costs, and the larger one sets its time: the arithmetic (FLOPs) of a prefill, which uses each weight
for every token, and the bytes of a decode step, which reads each weight for one token. A prediction becomes
milliseconds by a rate that is measured once, at one length; the plots show it as a dashed line.
"""

import time

import torch

from common.model import ModelConfig


def block_parameters(config: ModelConfig) -> int:
    """Elements of the matrices that every token is multiplied with: all but embedding and head (and the norms)."""
    qkv = config.hidden_size * (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    output = config.num_heads * config.head_dim * config.hidden_size
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (qkv + output + mlp)


def head_parameters(config: ModelConfig) -> int:
    return config.hidden_size * config.vocab_size


def parameters(config: ModelConfig) -> int:
    """All parameters but the norms' and biases; an embedding that is also the head counts once."""
    embeddings = 1 if config.tie_embeddings else 2
    return block_parameters(config) + embeddings * head_parameters(config)


def step_flops(config: ModelConfig, tokens: int, past: int = 0) -> int:
    """FLOPs of one step that runs `tokens` new tokens after `past` cached ones and samples from the last.

    A multiplication and its addition are two. A naive step of S tokens is step_flops(config, S).
    """
    weights = 2 * block_parameters(config) * tokens
    pairs = tokens * past + tokens * (tokens + 1) // 2  # of a query and a key that it may see
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * pairs  # q k^T, then the sum over v
    return weights + attention + 2 * head_parameters(config)


def decode_bytes(config: ModelConfig, past: int, dtype: torch.dtype) -> int:
    """Bytes that a decode step of one token reads: every weight once, and K and V of the `past` tokens."""
    weights = (block_parameters(config) + head_parameters(config)) * dtype.itemsize
    return weights + past * config.kv_bytes_per_token(dtype)


def matmul_flops_per_second(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """What one large square matrix product reaches here: the ceiling of every model on this device. Best of five."""
    size = size or (8192 if device.type == "cuda" else 2048)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        c = a @ b
        c[0, 0].item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds[1:])


def copy_bytes_per_second(device: torch.device, size: int | None = None) -> float:
    """Bytes read plus bytes written by a large copy on the device, per second: the ceiling of memory. Best of five."""
    size = size or (2**30 if device.type == "cuda" else 2**26)  # several times what a cache holds
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(4):  # so that the wait for the device is no part of it
            target.copy_(source)
        target[0].item()
        seconds.append((time.perf_counter() - start) / 4)
    return 2 * size / min(seconds[1:])
