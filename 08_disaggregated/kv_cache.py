"""The KV cache of all requests: a pool of pages, and attention that finds a sequence by its page table."""

from torch import Tensor

from common.attention import Attention
from common.loader import Loaded
from common.memory import zeros

from .batch import Batch


class KVCache:
    """The keys and values of `num_pages` pages, of whichever sequences they are.

    NEW in 05: pages in place of slots. One page holds `page_size` tokens of one sequence, in all layers.
    """

    def __init__(self, loaded: Loaded, num_pages: int, page_size: int, attention: Attention):
        config = loaded.config
        shape = (config.num_layers, num_pages, page_size, config.num_kv_heads, config.head_dim)
        # Zeros: places that are masked out get the weight 0, and 0 times a NaN in fresh memory would be NaN.
        self.k = zeros(shape, loaded.device, loaded.dtype)
        self.v = zeros(shape, loaded.device, loaded.dtype)
        self.attention = attention
        self.capacity = num_pages * page_size  # tokens there is room for

    def attend(self, batch: Batch, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`attend` for the model, once it is bound to the batch: store what is new, then attend to all there is.

        q is [N, H, D], k and v are [N, H_kv, D]; returns [N, H, D]. NEW in 05: what knows about pages is a kernel.
        """
        k_pages, v_pages = self.k[layer], self.v[layer]  # [pages, page_size, H_kv, D]
        self.attention.write(k, v, k_pages, v_pages, batch.slots)
        return self.attention.attend(q, k_pages, v_pages, batch.plan)
