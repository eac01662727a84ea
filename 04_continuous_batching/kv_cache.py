"""The KV cache of all running requests: one table with a row for each, and what attends to it."""

from typing import NamedTuple

from torch import Tensor

from common.loader import Loaded
from common.memory import zeros

from .batch import Batch
from .slot_attention import attend_to_slots


class KVCache:
    """The keys and values of `slots` sequences: in each layer, each has one contiguous piece of the full context
    length.

    NEW in 04: one table for all requests instead of a cache for each, so that one call can attend to many of them.
    A slot must hold whatever its request may become, so most of a slot stays empty: stage 05 is about that.
    """

    def __init__(self, loaded: Loaded, slots: int):
        config = loaded.config
        shape = (config.num_layers, slots, config.num_kv_heads, config.context_length, config.head_dim)
        # Zeros: places that are masked out get the weight 0, and 0 times a NaN in fresh memory would be NaN.
        self.k = zeros(shape, loaded.device, loaded.dtype)
        self.v = zeros(shape, loaded.device, loaded.dtype)
        self.capacity = slots * config.context_length  # tokens there is room for

    def bind(self, batch: Batch) -> "BoundCache":
        """NEW in 04: Return the `attend` with which the model runs this batch."""
        return BoundCache(self, batch)


class BoundCache(NamedTuple):
    """NEW in 04: `attend` for one batch, whose N tokens belong to many requests."""

    cache: KVCache
    batch: Batch

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store what is new, then attend to all there is. q is [N, H, D], k, v are [N, H_kv, D]; returns [N, H, D]."""
        keys, values = self.cache.k[layer], self.cache.v[layer]  # [slots, H_kv, context length, D]
        keys[self.batch.slots, :, self.batch.positions] = k
        values[self.batch.slots, :, self.batch.positions] = v
        return attend_to_slots(q, keys, values, self.batch.calls)
