"""Copy the weights of a checkpoint from its files into the model.

The model is built without memory, and its parameters are allocated once, on the device and in the dtype that they run
with. Every tensor of the memory-mapped files is then copied straight into its parameter. So the weights are in memory
once; the obvious way, to read them all into a dictionary first, needs room for them twice.

If several processes share a model (loader/shard.py), each copies only its own part out of the mapped files, as with
vLLM's `weight_loader`. Production engines add several threads, or GPUDirect Storage, that read the files at once.
"""

from collections.abc import Iterator
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from ..errors import InvalidInput
from ..fused.quantized import Codes, quantize_layer
from ..model import ModelConfig, Transformer
from .config import read_json
from .device import DTYPES
from .shard import WHOLE, Shard

PROGRESS_BYTES = 10**9  # smaller models load within seconds, without a progress bar
tqdm.set_lock(RLock())  # tqdm's is a semaphore: Python warns of a leak when a spawned process is killed


class NoInitialization(TorchFunctionMode):
    """Skip the functions of torch.nn.init: without memory they do nothing, but import PyTorch's compiler, for 2 s."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", "") == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return function(*args, **(kwargs or {}))


def empty_model(config: ModelConfig, device: torch.device, dtype: torch.dtype, shard: Shard = WHOLE) -> Transformer:
    """Build a model for inference whose parameters are uninitialised memory of `dtype` on `device`."""
    # Shapes without memory: PyTorch would initialise weights that are replaced anyway.
    with torch.device("meta"), NoInitialization():
        model = shard.build(config)
    for name, parameter in list(model.named_parameters()):
        module, _, attribute = name.rpartition(".")
        memory = torch.empty(parameter.shape, dtype=dtype, device=device)
        setattr(model.get_submodule(module), attribute, nn.Parameter(memory, requires_grad=False))
    if config.tie_embeddings:
        model.head.weight = model.embedding.weight
    model.cos, model.sin = model.cos.to(device), model.sin.to(device)
    return model.eval()


def checkpoint_names(config: ModelConfig) -> list[tuple[str, str, slice]]:
    """Return (parameter name, tensor name, rows) for each tensor of a Hugging Face checkpoint.

    The tensor is `parameter[rows]` of `Transformer`: loading copies it in, and a trainer that writes a checkpoint
    copies it out. Q, K and V are rows of one parameter here, and so are gate and up. A tied head is not listed.
    """
    q, kv, mlp = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim, config.intermediate_size
    whole = slice(None)
    qkv_rows = {"q_proj": slice(0, q), "k_proj": slice(q, q + kv), "v_proj": slice(q + kv, q + 2 * kv)}
    biases = {"attention.qkv.bias": config.qkv_bias, "attention.output.bias": config.output_bias}
    layer = [("attention_norm.weight", "input_layernorm.weight", whole)]
    for kind in ("weight", "bias"):
        layer += [(f"attention.qkv.{kind}", f"self_attn.{name}.{kind}", rows) for name, rows in qkv_rows.items()]
        layer += [(f"attention.output.{kind}", f"self_attn.o_proj.{kind}", whole)]
    for norm in ("q_norm", "k_norm") if config.qk_norm else ():
        layer += [(f"attention.{norm}.weight", f"self_attn.{norm}.weight", whole)]
    layer += [
        ("mlp_norm.weight", "post_attention_layernorm.weight", whole),
        ("mlp.gate_up.weight", "mlp.gate_proj.weight", slice(0, mlp)),
        ("mlp.gate_up.weight", "mlp.up_proj.weight", slice(mlp, 2 * mlp)),
        ("mlp.down.weight", "mlp.down_proj.weight", whole),
    ]
    names = [("embedding.weight", "model.embed_tokens.weight", whole)]
    for i in range(config.num_layers):
        names += [
            (f"blocks.{i}.{ours}", f"model.layers.{i}.{theirs}", rows)
            for ours, theirs, rows in layer
            if biases.get(ours, True)
        ]
    names += [("norm.weight", "model.norm.weight", whole)]
    if not config.tie_embeddings:
        names += [("head.weight", "lm_head.weight", whole)]
    return names


def copy_weights(model: Transformer, folder: Path, shard: Shard, quantization: str) -> None:
    """Fill the model from the folder's safetensors files, or from a GGUF file.

    quantization: as for `load_model`.
    Raise InvalidInput or FileNotFoundError if a tensor is missing, has another shape, or belongs to no parameter.
    """
    parameters = dict(model.named_parameters())
    places = {tensor: (name, parameters[name][rows]) for name, tensor, rows in checkpoint_names(model.config)}
    source = "config.json" if folder.is_dir() else "its metadata"
    progress = progress_bar(sum(place.nbytes for _, place in places.values()))
    tied_head, matrices = None, {}
    for path, name, tensor in stored_tensors(folder, model.config):
        if name.endswith("rotary_emb.inv_freq"):  # older checkpoints store this table; the config determines it
            continue
        if name == "lm_head.weight" and model.config.tie_embeddings:
            tied_head = path, tensor
            continue
        parameter, place = places.pop(name, (None, None))
        if place is None:
            raise InvalidInput(f"{path}: tensor {name} belongs to no parameter of the model that {source} describes")
        whole_shape = shard.whole_shape(parameter, place.shape, model.config)
        if tensor.shape != whole_shape:
            shapes = f"{tuple(tensor.shape)}, but {source} makes it {tuple(whole_shape)}"
            raise InvalidInput(f"{path}: tensor {name} has shape {shapes}")
        if tensor.dtype not in DTYPES.values():
            raise InvalidInput(f"{path}: tensor {name} is {tensor.dtype}; supported are {', '.join(DTYPES)}")
        part = shard.part(parameter, tensor)
        if quantization != "none" and place.ndim == 2:
            matrices.setdefault(parameter, []).append((place, part))
        else:
            copy(part, place)
        progress.update(place.nbytes)
    if places:
        missing, more = next(iter(places)), f" (and {len(places) - 1} more)" if len(places) > 1 else ""
        raise InvalidInput(f"{folder}: the checkpoint has no tensor {missing}{more}")
    for name, parts in matrices.items():
        parts.sort(key=lambda pair: pair[0].storage_offset())  # in the order of the rows in the parameter
        codes = quantized([part for _, part in parts], name, quantization)
        if codes is not None:
            quantize_layer(model, name, codes)
        else:
            for place, part in parts:
                copy(part, place)
    if tied_head is not None and hasattr(model.head, "weight") and not same_values(tied_head[1], model.head.weight):
        # A second copy of the embedding is harmless; other values mean that config.json does not fit its checkpoint.
        raise InvalidInput(f"{tied_head[0]}: lm_head.weight is not the embedding, but config.json says they are tied")


def copy(part: Any, place: Tensor) -> None:
    """Copy a tensor, or what a GGUF file has of it; convert to the type and device of `place`."""
    for rows, values in [(slice(None), part)] if isinstance(part, Tensor) else part.pieces():
        place[rows].copy_(values)


def quantized(parts: list, name: str, quantization: str) -> Codes | None:
    """Return the codes of a matrix, given by its parts; None if it stays as it is.

    name: the parameter's. Embeddings and the output layer have 8 bits. A file's codes stay if they have as many bits.
    """
    stored = [None if isinstance(part, Tensor) else part.codes() for part in parts]
    if quantization == "auto":
        is_one_form = None not in stored and len({codes.bits for codes in stored}) == 1
        return Codes.join(stored) if is_one_form else None
    bits = 8 if quantization == "int8" or name in ("embedding.weight", "head.weight") else 4
    for i, (part, codes) in enumerate(zip(parts, stored, strict=True)):
        if codes is None or codes.bits != bits:
            stored[i] = rounded(part, bits)
    return Codes.join(stored)


def rounded(part: Any, bits: int) -> Codes:
    """Return a matrix, a tensor or what a GGUF file has of it, in `bits` bits."""
    pieces = [part] if isinstance(part, Tensor) else [values for _, values in part.pieces()]
    return Codes.join([Codes.of(values, bits) for values in pieces])


def stored_tensors(folder: Path, config: ModelConfig) -> Iterator[tuple[Path, str, Any]]:
    """Yield (file, name, tensor) for all weights in the folder, or in a GGUF file, where tensors are `gguf.Quantized`.

    A tensor is a view of the mapped file, not a copy.
    """
    if folder.is_file():
        from . import gguf

        yield from gguf.stored_tensors(folder, config, [tensor for _, tensor, _ in checkpoint_names(config)])
        return
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if index.exists():  # also beside a single file, which is then left over from another upload or conversion
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise InvalidInput(f"{index}: weight_map is missing, or not an object")
        paths = [folder / file for file in sorted(set(weight_map.values()))]
    elif single.exists():
        paths = [single]
    elif paths := sorted(folder.glob("model-*-of-*.safetensors")):
        pass  # they name their tensors, and a missing one is noticed
    elif list(folder.glob("*.bin")):
        raise InvalidInput(f"{folder}: has pytorch_model.bin but no model.safetensors, the only format read here")
    else:
        raise FileNotFoundError(f"{single}: no such file")
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file, but {index.name} names it")
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 (a safe_open is not a dict)
                    yield path, name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise InvalidInput(f"{path}: not a complete safetensors file ({error})") from error


def same_values(stored: Tensor, loaded: Tensor) -> bool:
    """Return whether `loaded[V, hidden_size]` is `stored` converted; compare blocks of rows, since V is large."""
    blocks = zip(stored.split(4096), loaded.split(4096), strict=False)
    return stored.shape == loaded.shape and all(torch.equal(a.to(b), b) for a, b in blocks)


def randomize_weights(model: Transformer, shard: Shard = WHOLE) -> None:
    """Fill the model with weights from a fixed seed: norms 1, all others normal with a standard deviation of 0.02.

    A shard is a part of the same model: for each parameter, draw the whole and keep the part.
    """
    parameters = dict(model.named_parameters())
    progress = progress_bar(sum(parameter.nbytes for parameter in parameters.values()))
    generator = torch.Generator(model.cos.device).manual_seed(0)
    for name, parameter in parameters.items():
        if "norm" in name:
            parameter.fill_(1.0)
        elif shard == WHOLE:
            parameter.normal_(std=0.02, generator=generator)
        else:
            whole = parameter.new_empty(shard.whole_shape(name, parameter.shape, model.config))
            whole.normal_(std=0.02, generator=generator)
            pieces = [rows for owner, _, rows in checkpoint_names(model.config) if owner == name]
            parameter.copy_(shard.part_of_pieces(name, whole, pieces))
        progress.update(parameter.nbytes)


def quantize(model: Transformer, quantization: str) -> None:
    """Round all matrices of a model that is filled."""
    for name, parameter in list(model.named_parameters()):
        if parameter.ndim == 2:
            quantize_layer(model, name, quantized([parameter], name, quantization))


def progress_bar(total: int) -> tqdm:
    """Return a bar on stderr that counts up to `total` bytes; for a small model, one that is not shown."""
    return tqdm(total=total, desc="weights", unit="B", unit_scale=True, mininterval=1, disable=total < PROGRESS_BYTES)
