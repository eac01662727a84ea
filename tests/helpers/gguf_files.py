"""Small GGUF files with random weights, as llama.cpp's converter would write them, and each wrong in one way."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from common.loader import CHECKPOINTS

VOCAB, HIDDEN, MLP, LAYERS, HEADS, KV_HEADS = 4096, 256, 512, 2, 4, 2  # rows of 256: the blocks of Q4_K
D = {"llama": 64, "qwen2": 64, "qwen3": 128}  # of each family: what transformers takes if a file is silent
SIZES = {
    "block_count": LAYERS, "context_length": 512, "embedding_length": HIDDEN, "feed_forward_length": MLP,
    "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 5000.0, "vocab_size": VOCAB,
}  # fmt: skip


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
    sizes = SIZES | dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), D[family])
    fields = {"general.name": "random"} | {f"{family}.{name}": value for name, value in sizes.items()}
    return fields | {f"tokenizer.ggml.{name}": value for name, value in tokenizer.items()}


def tensors_of(family: str, kind: str) -> dict[str, tuple[np.ndarray, str]]:
    """Return values or blocks, and their type, of all tensors: matrices of `kind`, vectors in float32."""
    config = AutoConfig.for_model(
        family, vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        shapes = {name: (*one.shape,) for name, one in AutoModelForCausalLM.from_config(config).named_parameters()}
    rng, names = np.random.default_rng(0), gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], LAYERS)
    return {
        names.get_name(name, (".weight", ".bias")): (random_tensor(rng, shape, kind), kind if shape[1:] else "F32")
        for name, shape in shapes.items()
    }


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Return wide weights, so that answers depend on all. The library writes no K-quants: these are random blocks."""
    if len(shape) == 1:
        return (1 + 0.2 * rng.standard_normal(shape)).astype(np.float32)
    if not kind.endswith("_K"):
        return gguf.quantize(0.2 * rng.standard_normal(shape, dtype=np.float32), gguf.GGMLQuantizationType[kind])
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // values, size), dtype=np.uint8)
    scales = blocks[:, -2:] if kind == "Q6_K" else blocks[:, :4]  # float16; anything might be infinite
    scales[:] = np.full(scales.shape[1] // 2, 2e-4 if kind == "Q6_K" else 5e-4, np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write(path: Path, family="llama", kind="F32", fields=None, tensors=None) -> Path:
    """Write a file. fields, tensors: what is different in it, None for what it does not have."""
    writer = gguf.GGUFWriter(path, family)
    for name, value in (fields_of(family) | (fields or {})).items():
        if value is not None:
            writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    for name, tensor in (tensors_of(family, kind) | (tensors or {})).items():
        if tensor is not None:
            writer.add_tensor(name, tensor[0], raw_dtype=gguf.GGMLQuantizationType[tensor[1]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
