"""The KV cache of all requests: a pool of pages, and attention that finds a sequence by its page table."""

from typing import Any, NamedTuple

from torch import Tensor

from common.attention import Attention, PagedBatch
from common.loader import Loaded
from common.memory import zeros


class KVCache:
    """The keys and values of `num_pages` pages; page tables say which sequence owns which page.

    NEW in 05: one page holds `page_size` tokens of one sequence, in all layers.
    """

    def __init__(self, loaded: Loaded, num_pages: int, page_size: int, attention: Attention):
        config = loaded.config
        shape = (config.num_layers, num_pages, page_size, config.num_kv_heads, config.kv_width)  # int8: D + 4
        # Zeros: places that are masked out get the weight 0, and 0 times a NaN in fresh memory would be NaN.
        self.k = zeros(shape, loaded.device, loaded.kv_dtype)
        self.v = zeros(shape, loaded.device, loaded.kv_dtype)
        # K and V of each layer, cut once: [pages, page_size, H_kv, D].
        self.layers = list(zip(self.k, self.v, strict=True))
        self.attention = attention
        self.capacity = num_pages * page_size  # tokens there is room for

    def bind(self, batch: PagedBatch) -> "BoundCache":
        """Return the `attend` with which the model runs this batch."""
        return BoundCache(self, batch, self.attention.prepare(batch))


class BoundCache(NamedTuple):
    """`attend` for one batch, whose N tokens belong to many requests. NEW in 05: a kernel reads the pages."""

    cache: KVCache
    batch: PagedBatch
    plan: Any  # what the backend's `prepare` returned for the batch

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store what is new, then attend to all there is. q is [N, H, D], k, v are [N, H_kv, D]; returns [N, H, D]."""
        k_pages, v_pages = self.cache.layers[layer]
        self.cache.attention.write(k, v, k_pages, v_pages, self.batch.slot_mapping)
        return self.cache.attention.attend(q, k_pages, v_pages, self.plan)
