"""The KV cache of all requests: a pool of pages, and attention that finds a sequence by its page table."""

from typing import Any, NamedTuple

from torch import Tensor

from common.attention import Attention, PagedBatch
from common.loader import Loaded
from common.memory import zeros


class KVCache:
    """The keys and values of `num_pages` pages; page tables say which sequence owns which page.

    One page holds `page_size` tokens of one sequence, in all layers. NEW in 08: pages travel, so all layers of a page
    lie side by side, and it is one piece of memory (vLLM calls these cross-layer blocks).
    """

    def __init__(self, loaded: Loaded, num_pages: int, page_size: int, attention: Attention):
        config = loaded.config
        # NEW in 08: each page has a block for K and one for V of every layer. Before, each layer had a pool of its own.
        shape = (num_pages, 2 * config.num_layers, page_size, config.num_kv_heads, config.kv_width)  # int8: D + 4
        # Zeros: places that are masked out get the weight 0, and 0 times a NaN in fresh memory would be NaN.
        self.memory = zeros(shape, loaded.device, loaded.kv_dtype)
        self.k, self.v = (self.memory[:, which::2].transpose(0, 1) for which in (0, 1))  # [layers, pages, ...], views
        # For each layer, all blocks from its first K and its first V on: `spread` takes every (2 * layers)-th of them.
        blocks = self.memory.flatten(0, 1)  # [blocks, page_size, H_kv, D]
        self.layers = [(blocks[2 * layer :], blocks[2 * layer + 1 :]) for layer in range(config.num_layers)]
        self.attention = attention
        self.capacity = num_pages * page_size  # tokens there is room for

    def bind(self, batch: PagedBatch) -> "BoundCache":
        """Return the `attend` with which the model runs this batch."""
        spread = batch.spread(self.memory.shape[1])  # NEW in 08
        return BoundCache(self, batch, spread.slot_mapping, self.attention.prepare(spread))


class BoundCache(NamedTuple):
    """`attend` for one batch, whose N tokens belong to many requests. A kernel reads the pages."""

    cache: KVCache
    batch: PagedBatch
    slot_mapping: Tensor  # NEW in 08: counted over all blocks
    plan: Any  # what the backend's `prepare` returned for the batch

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store what is new, then attend to all there is. q is [N, H, D], k, v are [N, H_kv, D]; returns [N, H, D]."""
        k_pages, v_pages = self.cache.layers[layer]
        self.cache.attention.write(k, v, k_pages, v_pages, self.slot_mapping)
        return self.cache.attention.attend(q, k_pages, v_pages, self.plan)
