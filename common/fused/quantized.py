"""Weights of 8 and 4 bits. They are stored as the kernels for few rows read them. For many rows a layer is unpacked to
the model's type and multiplied by a library; where memory allows, the unpacked weight is kept.

A group is 32 inputs of an output, with a scale and, of 4 bits, a minimum, both float16, as in GGUF's Q8_0 and Q4_1:

    weight = scale * code              code from -127 to 127
    weight = scale * code + minimum    code from 0 to 15

32 outputs lie side by side, as in `Blocks`: for each group their scales, their minimums, and their codes, four bytes
of each output at a time. So one weight takes 8.5 or 5 bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .packed import Blocks, PackedLinear, can_pack

GROUP, OUTPUTS = 32, 32
KEPT_SHARE = 8  # Unpacked weights stay if they take at most 1 / KEPT_SHARE of the memory that is free at loading.
_scratch: dict[tuple, PackedLinear] = {}  # by shape and type: the place of weights unpacked for many rows


class Codes(NamedTuple):
    """A matrix, or rows of one. codes: `[O, groups, 32]`; scales, minimums (4 bits): `[O, groups]`, float16."""

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None

    @property
    def bits(self) -> int:
        return 8 if self.minimums is None else 4

    @classmethod
    def join(cls, parts: "list[Codes]") -> "Codes":
        """Return the rows of all parts; they must have the same number of bits."""
        return cls(*(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)))

    @classmethod
    def of(cls, weight: Tensor, bits: int) -> "Codes":
        """Round `weight[O, I]` to the nearest codes; scales are rounded first, so that codes make up for it."""
        groups = F.pad(weight.float(), (0, -weight.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
        low, high = groups.aminmax(dim=2)
        span = torch.maximum(-low, high) / 127 if bits == 8 else (high - low) / 15
        scales, minimums = span.half(), low.half() if bits == 4 else None
        start = 0 if bits == 8 else minimums.float()[..., None]
        codes = (groups - start) / scales.float()[..., None]
        codes = codes.nan_to_num(0, 0, 0).round().clamp(*((-127, 127) if bits == 8 else (0, 15)))
        return cls(codes.to(torch.int8), scales, minimums)

    def pack(self) -> Tensor:
        """Return them as they lie in memory, `[blocks, groups, bytes]`, uint8."""
        words = self.codes
        if self.minimums is not None:
            first, second = words.unflatten(2, (-1, 2, 4)).unbind(3)
            words = (first | second << 4).flatten(2)  # an input shares a byte with the fourth after it
        words, *numbers = (
            F.pad(part, (0, 0) * (part.ndim - 1) + (0, -len(part) % OUTPUTS))
            .unflatten(0, (-1, OUTPUTS))
            .transpose(1, 2)
            for part in (words, self.scales, self.minimums)
            if part is not None
        )  # [blocks, groups, outputs, ...]
        words = words.unflatten(3, (-1, 4)).transpose(2, 3).flatten(2)
        return torch.cat(
            [part.contiguous().view(torch.uint8) for part in numbers] + [words.contiguous().view(torch.uint8)], 2
        )


class QuantizedWeight(nn.Module):
    """A matrix of these codes, `[out_features, in_features]`."""

    def __init__(self, codes: Codes, in_features: int, dtype: torch.dtype):
        super().__init__()
        self.bits = codes.bits
        self.raw, self.dtype = codes.pack(), dtype
        self.out_features, self.in_features = len(codes.codes), in_features
        header = 2 * OUTPUTS if self.bits == 8 else 4 * OUTPUTS
        self.numbers = (
            self.raw[..., :header].view(torch.float16).unflatten(2, (-1, OUTPUTS))
        )  # [blocks, groups, 1 or 2, 32]
        self.words = self.raw[..., header:].unflatten(2, (-1, OUTPUTS, 4))  # [blocks, groups, steps, 32, 4]
        place = torch.tensor([self.raw.data_ptr(), self.raw[0].nbytes, 4 * OUTPUTS])
        self.blocks = Blocks(self.raw, place, f"{self.bits} bits")

    def rows(self, outputs: Tensor) -> Tensor:
        """Return the weights of `outputs[N]`, `[N, in_features]` in float32."""
        block, output = outputs // OUTPUTS, outputs % OUTPUTS
        numbers = self.numbers[block, :, :, output].float()  # [N, groups, 1 or 2]
        words = self.words[block, :, :, output]  # [N, groups, steps, 4]
        codes = words.view(torch.int8) if self.bits == 8 else torch.stack([words & 15, words >> 4], dim=3)
        codes = codes.flatten(2)
        weights = codes * numbers[..., :1]
        return (weights if self.bits == 8 else weights + numbers[..., 1:]).flatten(1)[:, : self.in_features]


class QuantizedEmbedding(nn.Module):
    """An embedding of these codes."""

    def __init__(self, weight: QuantizedWeight):
        super().__init__()
        self.quantized = weight

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.quantized.rows(token_ids).to(self.quantized.dtype).contiguous()


class QuantizedLinear(nn.Module):
    """A linear layer with these codes."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None):
        super().__init__()
        self.quantized, self.bias, self.blocks = weight, bias, weight.blocks
        self.in_features, self.out_features = weight.in_features, weight.out_features
        self.scratch: PackedLinear | None = None
        self.keeps, self.kept = False, None  # whether it keeps its unpacked weight, and this weight

    def forward(self, x: Tensor) -> Tensor:
        if self.scratch is None:
            every = torch.arange(self.out_features)
            return F.linear(x, self.quantized.rows(every).to(x.dtype), self.bias)
        packed = self.kept
        if packed is None:
            packed, place = self.scratch.packed, self.scratch.blocks.place
            if self.keeps:
                packed, place = self.scratch.empty_like()
            places = self.blocks.place.data_ptr(), place.data_ptr()
            self.unpack(self.quantized.bits, *places, self.in_features, self.out_features)
            self.kept = packed if self.keeps else None  # Only once it is complete: a step may be interrupted.
        return torch.ops.mkldnn._linear_pointwise(x, packed, self.bias, "none", [], "")


def prepare_unpacking(model: nn.Module, dtype: torch.dtype, unpack: Callable[..., None]) -> None:
    """Let the quantised layers of a model unpack into weights that oneDNN reads, where it packs them in `Blocks`.

    They keep these if all together take no more than 1 / KEPT_SHARE of the free memory.
    """
    import psutil  # a machine for a GPU may lack it

    layers = [layer for layer in model.modules() if isinstance(layer, QuantizedLinear)]
    nbytes = sum(layer.in_features * layer.out_features * dtype.itemsize for layer in layers)
    keeps = nbytes * KEPT_SHARE <= psutil.virtual_memory().available
    for layer in layers:
        if layer.in_features % 8 == 0 and can_pack(dtype):
            key = layer.out_features, layer.in_features, dtype
            if key not in _scratch:
                _scratch[key] = PackedLinear(recognisable_layer(layer.in_features, layer.out_features, dtype))
            if _scratch[key].blocks is not None:
                layer.scratch, layer.unpack, layer.keeps = _scratch[key], unpack, keeps


def recognisable_layer(inputs: int, outputs: int, dtype: torch.dtype) -> nn.Linear:
    """Return a layer whose rows and columns are recognised in its packed weight. Random numbers would take longer."""
    linear = nn.Linear(inputs, outputs, bias=False, device="meta")
    numbers = torch.arange(251, dtype=dtype)  # a prime, so that rows of any usual size differ; exact in bfloat16
    weight = numbers.repeat(inputs * outputs // 251 + 1)[: inputs * outputs].view(outputs, inputs)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


def quantize_layer(model: nn.Module, name: str, codes: Codes) -> None:
    """Put codes in the place of the parameter `name`, a layer's or an embedding's weight."""
    path = name.removesuffix(".weight")
    layer = model.get_submodule(path)
    weight = QuantizedWeight(codes, layer.weight.shape[1], layer.weight.dtype)
    if path == "embedding":
        model.embedding = QuantizedEmbedding(weight)
        if model.config.tie_embeddings:
            model.head = QuantizedLinear(weight, None)
    else:
        model.set_submodule(path, QuantizedLinear(weight, layer.bias))
