"""Small GGUF files with random weights, as llama.cpp's converter would write them, and each wrong in one way."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from common.loader import CHECKPOINTS
from common.loader.weights import checkpoint_names, empty_model
from common.model import ModelConfig

LLAMA = ModelConfig(
    vocab_size=4096, hidden_size=256, intermediate_size=512, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64,
    context_length=512, tie_embeddings=True,
)  # fmt: skip
CONFIGS = {  # rows of 256: the blocks of Q4_K
    "llama": LLAMA,
    "qwen2": replace(LLAMA, qkv_bias=True),
    "qwen3": replace(LLAMA, qk_norm=True, head_dim=128),  # transformers assumes 128 if a file does not say it.
}
SIZES = {
    "block_count": 2, "context_length": 512, "embedding_length": 256, "feed_forward_length": 512,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 5000.0, "vocab_size": 4096,
}  # fmt: skip
HEAD_SIZES = ("attention.key_length", "attention.value_length", "rope.dimension_count")


def fields_of(family: str) -> dict[str, Any]:
    """Return all fields of a file: the sizes above, and the bundled checkpoint's tokenizer."""
    bundled = json.loads((CHECKPOINTS / "target" / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"] for token in bundled["added_tokens"]}
    tokens = sorted(vocab := bundled["model"]["vocab"], key=vocab.get)
    tokenizer = {
        "model": "gpt2", "pre": "smollm", "tokens": tokens,
        "merges": [" ".join(pair) for pair in bundled["model"]["merges"]],
        "token_type": [3 if token in special else 1 for token in tokens], "eos_token_id": vocab["<|im_end|>"],
        "add_bos_token": False,
    }  # fmt: skip
    sizes = SIZES | dict.fromkeys(HEAD_SIZES, CONFIGS[family].head_dim)
    fields = {"general.name": "random"} | {f"{family}.{name}": value for name, value in sizes.items()}
    return fields | {f"tokenizer.ggml.{name}": value for name, value in tokenizer.items()}


def tensors_of(family: str, kinds: Sequence[str]) -> dict[str, tuple[np.ndarray, str]]:
    """Return values or blocks, and their type, of all tensors: matrices of `kinds` in turn, vectors in float32."""
    rng, config, tensors, kinds = np.random.default_rng(0), CONFIGS[family], {}, cycle(kinds)
    parameters = dict(empty_model(config, torch.device("cpu"), torch.float32).named_parameters())
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], config.num_layers)
    for parameter, name, rows in checkpoint_names(config):
        stem, _, suffix = name.rpartition(".")
        shape = parameters[parameter][rows].shape
        type_of = next(kinds) if shape[1:] else "F32"
        tensors[f"{table.get_name(stem)}.{suffix}"] = random_tensor(rng, shape, type_of), type_of
    return tensors


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Return wide weights, so that answers depend on all. The library writes no K-quants: these are random blocks."""
    if len(shape) == 1:
        return (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
    if not kind.endswith("_K"):
        return gguf.quantize(0.2 * rng.standard_normal(shape, dtype=np.float32), gguf.GGMLQuantizationType[kind])
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // values, size), dtype=np.uint8)
    scales = blocks[:, -2:] if kind == "Q6_K" else blocks[:, :4]  # float16: random bytes might be infinite
    scales[:] = np.full(scales.shape[1] // 2, 2e-4 if kind == "Q6_K" else 5e-4, np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write(path: Path, family="llama", kinds=("F32",), **changes) -> Path:
    """Write a file. changes: fields, and tensors with their types, that differ in it; "" for what it lacks."""
    writer = gguf.GGUFWriter(path, family)
    for name, value in (fields_of(family) | tensors_of(family, kinds) | changes).items():
        if isinstance(value, tuple):
            writer.add_tensor(name, value[0], raw_dtype=gguf.GGMLQuantizationType[value[1]])
        elif value != "":
            is_count = type(value) is int and value >= 0  # llama.cpp takes no other type for these
            kind = gguf.GGUFValueType.UINT32 if is_count else gguf.GGUFValueType.get_type(value)
            writer.add_key_value(name, value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
