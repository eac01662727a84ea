"""How heads are normed and rotated on their way out of the product that makes them: the same on every device."""

from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..model import Attend, Attention


class HeadRotation(NamedTuple):
    """What turns the product `qkv[N, (H + 2 * H_kv) * D]` of one layer into its q, k and v.

    positions: `[N]`, int64. cos, sin: the model's tables `[context_length, D]`, float32. q_weight, k_weight: `[D]` each
    where the heads of q and k are normed before they are rotated, else None.

    The `Rotation` of each device adds `heads(qkv)`, which returns q `[N, H, D]`, k and v `[N, H_kv, D]`; v is a view of
    the product, and on a CPU q and k are, too.
    """

    positions: Tensor
    cos: Tensor
    sin: Tensor
    q_weight: Tensor | None
    k_weight: Tensor | None
    eps: float
    num_heads: int
    num_kv_heads: int

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return views of the product: q `[N, H, D]`, k and v `[N, H_kv, D]`."""
        heads = qkv.view(len(qkv), self.num_heads + 2 * self.num_kv_heads, -1)
        return heads.split_with_sizes((self.num_heads, self.num_kv_heads, self.num_kv_heads), 1)


class Unrotated(Tensor):
    """q or k of one layer on a GPU. The first use of it, in whatever way, launches the rotation, and makes it a plain
    tensor: code that uses q and k only sees plain tensors.

    `TritonAttention.write` does not use it, but writes by its `Launch`: so K is rotated and written in one launch.
    """

    launch: "Launch"

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Unrotated):
                value.launch.rotate()
        return function(*args, **(kwargs or {}))


class Launch(NamedTuple):
    """The rotation of one layer's q and k, which waits for their first use.

    rotation: of Triton, with `launch(qkv, q, k, v=None, slot_mapping=None)`: fill `q[N, H, D]`, and k: `[N, H_kv, D]`,
    or with a slot_mapping the pages of k and of v.
    """

    qkv: Tensor
    rotation: HeadRotation
    q: "ref[Tensor]"  # weak, like k: these tensors have the launch, and a cycle would keep a step's memory
    k: "ref[Tensor]"
    v: Tensor

    def rotate(self) -> None:
        """Fill q and k, except one that has been filled already or is no longer in use."""
        self.rotation.launch(self.qkv, self.take(self.q), self.take(self.k))

    def write(self, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor) -> None:
        """Fill q, and the slots `slot_mapping[N]` (int64) of pages `[pages, page_size, H_kv, D]` with K and V."""
        self.rotation.launch(self.qkv, self.take(self.q), k_pages, v_pages, slot_mapping)

    def take(self, heads: "ref[Tensor]") -> Tensor:
        """Make q or k a plain tensor and return it to be filled; if it is filled or gone, return other memory."""
        x = heads()
        if isinstance(x, Unrotated):
            x.__class__ = type(self.v)
            del x.launch
            return x
        count = self.rotation.num_heads if heads is self.q else self.rotation.num_kv_heads
        return empty_heads(self.v, count)


def empty_heads(v: Tensor, count: int) -> Tensor:
    """Return memory for `count` heads of each token, `[N, count, D]`."""
    return torch.empty(len(v), count, v.shape[2], dtype=v.dtype, device=v.device)


def unrotated(qkv: Tensor, rotation: HeadRotation) -> tuple[Tensor, Tensor, Tensor]:
    """Return q `[N, H, D]`, k and v `[N, H_kv, D]`, of which q and k wait for their first use."""
    v = rotation.split(qkv)[2]
    q, k = (empty_heads(v, count) for count in (rotation.num_heads, rotation.num_kv_heads))
    launch = Launch(qkv, rotation, ref(q), ref(k), v)
    for x in (q, k):
        x.__class__, x.launch = Unrotated, launch
    return q, k, v


def heads_of(attention: Attention) -> tuple:
    """Return the fields of `HeadRotation` that belong to a layer."""
    q_norm, k_norm = attention.q_norm, attention.k_norm
    norms = (q_norm.weight, k_norm.weight, q_norm.eps) if q_norm is not None else (None, None, 0.0)
    return *norms, attention.num_heads, attention.num_kv_heads


def check_positions(positions: Tensor, attend: Attend, cos: Tensor) -> None:
    """Raise IndexError if a position has no row in the rotary table: compiled kernels would read what lies beside it.

    Do not wait for a GPU's positions: there, look at the lengths in the batch of `attend`, if it has one.
    """
    lengths = getattr(getattr(attend, "batch", None), "host_lengths", ())
    if positions.device.type == "cpu" and len(positions):
        first, last = map(int, positions.aminmax())
    elif lengths:
        first, last = 0, max(lengths) - 1
    else:
        return
    if first < 0 or last >= len(cos):
        wrong = first if first < 0 else last
        raise IndexError(
            f"a token has position {wrong}, and the rotary table has rows for 0 to {len(cos) - 1}: a sequence may have "
            f"{len(cos)} tokens, the model's context_length"
        )
