"""Read a GGUF file, llama.cpp's format: weights of 4 to 32 bits, sizes and tokenizer in one file.

The library `gguf` reads the file and dequantises. This module says what the file holds in the words of a Hugging Face
checkpoint, the fields of a config.json and the names of its tensors, and refuses by name what common/model.py cannot
run. On a CPU, matrices in Q8_0, Q4_0 and Q4_1 keep their codes, which products read (fused/quantized.py); all others
are dequantised, a few rows at a time, into their parameters.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFReader, GGUFValueType, dequantize, get_tensor_name_map
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from torch import Tensor

from ..errors import InvalidInput, counted, first_sentence, require
from ..fused.quantized import Codes
from ..model import ModelConfig, rope_frequencies

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # "llama" is also what files call Mistral and SmolLM2
TYPES = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K Q6_K".split()
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "head_dim": "attention.key_length",
}
HEAD_SIZES = ("attention.value_length", "rope.dimension_count")  # must be those of keys
# The fields of an architecture that are read here, and their types. Any other may change what the model computes.
FIELDS = (
    dict.fromkeys(
        (*SIZES.values(), *HEAD_SIZES, "attention.sliding_window", "rope.scaling.original_context_length"), int
    )
    | dict.fromkeys(("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"), float)
    | {"rope.scaling.type": str, "rope.scaling.finetuned": bool}
)
LLAMA_3 = {  # the scaling that all models of Llama 3 have, but for its factor
    "rope_type": "llama3", "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0
}  # fmt: skip
SCALING_TENSOR = "rope_freqs.weight"  # how files store that scaling: the divisor of each pair's frequency
ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
# How text is split before byte pairs are merged. transformers knows all but SmolLM's, which splits off each digit.
SPLITS = ("default", "gpt-2", "smollm", "llama-bpe", "tekken", "qwen2", "deepseek-r1-qwen")
MAX_PARTS, MAX_ENTRIES = 2**16, 2**21  # fields or tensors; entries of an array, tokens of a context
PIECE = 2**18  # values that are dequantised at once


class Reader(GGUFReader):
    """The library's reader, with `values`: the contents of all fields but lists of texts.

    The library's would make two arrays for each entry of a list: seconds for a vocabulary, and gigabytes for a damaged
    file. Here a list of numbers is one view of the file, and a list of texts is skipped.
    """

    def __init__(self, path: Path):
        try:
            parts = np.fromfile(path, "<u8", 2, offset=8)  # how many tensors and fields
            if parts.max() > MAX_PARTS:
                raise ValueError(f"it claims to have {counted(parts.max(), 'part')}")
            super().__init__(path)
            self.values = {name: field.contents() for name, field in self.fields.items()}
        except Exception as error:  # the library raises whatever a damaged file leads to
            raise InvalidInput(f"{path}: not a complete GGUF file ({first_sentence(error)})") from error

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list, list[int], list]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind, entries = struct.unpack_from("<IQ", self.data, orig_offs)
        if entries > MAX_ENTRIES:
            raise ValueError(f"a list claims to have {entries} entries")
        end = orig_offs + 12
        if kind == GGUFValueType.STRING:
            for _ in range(entries):
                end += 8 + struct.unpack_from("<Q", self.data, end)[0]
            return end - orig_offs, [], [], [GGUFValueType.ARRAY, kind]
        values = self._get(end, self.gguf_scalar_to_np[GGUFValueType(kind)], entries)
        return end + values.nbytes - orig_offs, [values], [0], [GGUFValueType.ARRAY, kind]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor in PyTorch's order, None if there is no such tensor."""
        return next((tuple(tensor.shape[::-1].tolist()) for tensor in self.tensors if tensor.name == name), None)


@dataclass(frozen=True)
class Quantized:
    """A matrix or vector of a GGUF file, quantised: it has what `shard.part` and `copy_weights` need of a tensor."""

    data: np.ndarray  # values, or rows of bytes, of the mapped file
    kind: GGMLQuantizationType
    shape: torch.Size
    dtype: torch.dtype = torch.float32  # once it is dequantised
    first_column: int = 0

    def narrow(self, dimension: int, start: int, count: int) -> "Quantized":
        """As `torch.narrow`: a part of its rows or columns."""
        shape = list(self.shape)
        shape[dimension] = count
        change = {"first_column": start} if dimension else {"data": self.data[start : start + count]}
        return replace(self, shape=torch.Size(shape), **change)

    def codes(self) -> Codes | None:
        """Return the matrix as its file has it, in 8 bits or in 4; None if it has another type, or columns are gone."""
        if self.kind.name not in ("Q8_0", "Q4_0", "Q4_1") or self.first_column:
            return None
        numbers = 2 if self.kind.name == "Q4_1" else 1
        groups = torch.from_numpy(np.array(self.data)).unflatten(1, (self.shape[1] // 32, -1))  # [O, groups, bytes]
        scales, codes = groups[..., : 2 * numbers].view(torch.float16), groups[..., 2 * numbers :]
        if self.kind.name == "Q8_0":
            return Codes(codes.view(torch.int8), scales[..., 0], None)
        codes = torch.cat([codes & 15, codes >> 4], 2).to(torch.int8)
        # Q4_0 means code - 8: its minimum is what 0 stands for.
        return Codes(codes, scales[..., 0], scales[..., 1] if numbers == 2 else -8 * scales[..., 0])

    def pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield (rows, values in float32) until there are all: a whole matrix would need as much memory again."""
        size = max(1, PIECE // self.shape[-1]) if len(self.shape) > 1 else len(self.data)
        for start in range(0, len(self.data), size):
            rows = slice(start, start + size)
            values = torch.from_numpy(dequantize(np.array(self.data[rows]), self.kind))
            yield rows, values[..., self.first_column :][..., : self.shape[-1]]


def read_fields(path: Path, reader: Reader) -> dict[str, Any]:
    """Return the fields of a config.json that says the same. Raise InvalidInput for one that is not read here."""
    family, tensors = reader.values.get("general.architecture"), {tensor.name: tensor for tensor in reader.tensors}
    require(path, family in ARCHITECTURES, "general.architecture", family, ", ".join(ARCHITECTURES))
    start = f"{family}."
    given = {name.removeprefix(start): value for name, value in reader.values.items() if name.startswith(start)}
    for field, value in given.items():
        if kind := FIELDS.get(field):
            require(path, type(value) is kind, start + field, value, f"a value of type {kind.__name__}")
        else:
            require(path, not value, start + field, value, "none")
    fields = {name: given.get(field) for name, field in SIZES.items()}
    embedding = reader.shape("token_embd.weight") or (0,)
    fields["vocab_size"] = fields["vocab_size"] or embedding[0]
    fields["num_key_value_heads"] = fields["num_key_value_heads"] or fields["num_attention_heads"]
    window, parts = given.get("attention.sliding_window"), reader.values.get("split.count", 1)
    require(path, parts in (0, 1), "split.count", parts, "a model in one file")
    whole = not window or window >= (fields["max_position_embeddings"] or 0)
    require(path, whole, f"{start}attention.sliding_window", window, "none, or the whole context")
    factor, original = given.get("rope.scaling.factor"), given.get("rope.scaling.original_context_length")
    scaling = given.get("rope.scaling.type", "linear" if factor else "none")  # as llama.cpp understands a factor alone
    rope = {"rope_type": "default", "rope_theta": given.get("rope.freq_base", 10_000.0)}
    if scaling != "none":
        rope |= {"rope_type": scaling, "factor": factor, "original_max_position_embeddings": original}
    if SCALING_TENSOR in tensors:
        rope = llama3_scaling(rope, tensors[SCALING_TENSOR].data.ravel(), path)
    return fields | {
        "model_type": family,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "rms_norm_eps": given.get("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope,
        "tie_word_embeddings": "output.weight" not in tensors,
        "eos_token_id": sorted(read_eos_token_ids(path, reader)),
    }


def llama3_scaling(rope: dict, divisors: np.ndarray, path: Path) -> dict:
    """Return the parameters whose frequencies are those of `rope`, divided. Raise InvalidInput if there are none."""
    scaled = rope | LLAMA_3 | {"factor": float(divisors.max())}
    parameters = (rope | {"rope_type": "default"}, scaled)
    plain, wanted = (rope_frequencies(one, 2 * len(divisors))[0].numpy() for one in parameters)
    same = (
        rope["rope_type"] == "default"
        and divisors.min() > 0
        and np.allclose(plain, wanted * divisors, rtol=1e-4, atol=0)
    )
    require(path, same, SCALING_TENSOR, divisors.tolist(), "the scaling of Llama 3")
    return scaled


def check_sizes(path: Path, reader: Reader, config: ModelConfig) -> None:
    """Raise InvalidInput if the file's tensors are not of these sizes, before an absurd amount of memory is taken."""
    family, D = reader.values["general.architecture"], config.head_dim
    lengths = {f"{family}.{field}": reader.values.get(f"{family}.{field}") for field in HEAD_SIZES}
    lengths[SCALING_TENSOR] = 2 * (reader.shape(SCALING_TENSOR) or (0,))[0]
    for field, length in lengths.items():
        require(path, length in (None, 0, D), field, length, f"{D}, the size of a head")
    context = config.context_length
    require(path, context <= MAX_ENTRIES, f"{family}.context_length", context, f"at most {MAX_ENTRIES}")
    last = f"blk.{config.num_layers - 1}."
    matrices = {
        "token_embd.weight": config.vocab_size,
        f"{last}attn_q.weight": config.num_heads * D,
        f"{last}attn_k.weight": config.num_kv_heads * D,
        f"{last}ffn_gate.weight": config.intermediate_size,
    }
    for name, rows in matrices.items():
        shape, made = reader.shape(name), (rows, config.hidden_size)
        if shape != made:
            raise InvalidInput(f"{path}: tensor {name} has shape {shape}, but its metadata makes it {made}")


def read_eos_token_ids(path: Path, reader: Reader | None = None) -> frozenset[int]:
    """Return the tokens that end a text or a turn. Raise InvalidInput for anything but token ids."""
    values = (reader or Reader(path)).values
    given = {name: values[name] for name in ENDS if name in values}
    for name, value in given.items():
        require(path, type(value) is int and value >= 0, name, value, "a token id")
    return frozenset(given.values())


def build_tokenizer(path: Path) -> Any:
    """Return the file's tokenizer as transformers builds it, or None if it has none."""
    values = Reader(path).values
    if "tokenizer.ggml.model" not in values:
        return None
    split, template = values.get("tokenizer.ggml.pre", "default"), values.get("tokenizer.chat_template", "")
    require(path, type(template) is str, "tokenizer.chat_template", template, "a text")
    require(path, split in SPLITS, "tokenizer.ggml.pre", split, ", ".join(SPLITS))
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
    if split == "smollm":
        digits = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(digits)
    return tokenizer


def stored_tensors(path: Path, config: ModelConfig, names: list[str]) -> Iterator[tuple[Path, str, Quantized]]:
    """Yield (file, name in a Hugging Face checkpoint, tensor) for all weights. names: of the model's tensors."""
    reader = Reader(path)
    family = reader.values["general.architecture"]
    table, checkpoint_name = get_tensor_name_map(MODEL_ARCH[family.upper()], config.num_layers), {}
    for name in names:
        stem, _, kind = name.rpartition(".")
        checkpoint_name[f"{table.get_name(stem)}.{kind}"] = name
    for tensor in reader.tensors:
        if tensor.name == SCALING_TENSOR:
            continue
        kind, data = tensor.tensor_type, tensor.data
        require(path, kind.name in TYPES, f"type of tensor {tensor.name}", kind.name, ", ".join(TYPES))
        rotated = family == "llama" and (".attn_q." in tensor.name or ".attn_k." in tensor.name)
        if rotated and len(data) % config.head_dim == 0:  # otherwise copy_weights refuses its shape
            # llama.cpp rotates neighbours, and its converter put each pair of a head side by side.
            pairs = data.reshape(-1, config.head_dim // 2, 2, *data.shape[1:])
            data = pairs.swapaxes(1, 2).reshape(data.shape)
        shape = torch.Size(tensor.shape[::-1].tolist())
        yield path, checkpoint_name.get(tensor.name, tensor.name), Quantized(data, kind, shape)
        if hasattr(mmap, "MADV_DONTNEED"):  # pages of the file that were read would count as this process's memory
            reader.data._mmap.madvise(mmap.MADV_DONTNEED)
