"""The KV cache of all running requests: one table with a row for each, and whatever attends to it."""

from torch import Tensor

from common.loader import Loaded
from common.memory import zeros

from .batch import Batch
from .slot_attention import attend_to_slots


class KVCache:
    """The keys and values of `slots` sequences: for each of them, one contiguous buffer of the full context length.

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

    def attend(self, batch: Batch, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`attend` for the model, once it is bound to the batch: store what is new, then attend to all there is.

        q is [N, H, D], k and v are [N, H_kv, D]; returns [N, H, D]. NEW in 04: the N tokens belong to many requests.
        """
        keys, values = self.k[layer], self.v[layer]  # [slots, H_kv, context length, D]
        keys[batch.slots, :, batch.positions] = k
        values[batch.slots, :, batch.positions] = v
        return attend_to_slots(q, keys, values, batch.plan)
