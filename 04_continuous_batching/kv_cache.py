"""The KV cache of all running requests: a row of a big table for each, and attention that reads the rows in place."""

import torch
import torch.nn.functional as F
from torch import Tensor

from common.memory import zeros
from common.model import ModelConfig

from .batch import Batch


class KVCache:
    """The keys and values of `slots` sequences: for each of them, one contiguous buffer of the full context length.

    NEW in 04: one table for all requests instead of a cache for each, so that one call can attend to many of them.
    A slot must hold whatever its request may become, so most of a slot stays empty: stage 05 is about that.
    """

    def __init__(self, config: ModelConfig, slots: int, device: torch.device, dtype: torch.dtype):
        shape = (config.num_layers, slots, config.num_kv_heads, config.context_length, config.head_dim)
        # Zeros: places that are masked out get the weight 0, and 0 times a NaN in fresh memory would be NaN.
        self.k = zeros(shape, device, dtype)
        self.v = zeros(shape, device, dtype)
        self.capacity = slots * config.context_length  # tokens there is room for

    @property
    def nbytes(self) -> int:
        """Bytes allocated, filled or not."""
        return self.k.nbytes + self.v.nbytes

    def attend(self, batch: Batch, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`attend` for the model, once it is bound to the batch: store what is new, then attend to all there is.

        q is [N, H, D], k and v are [N, H_kv, D]; returns [N, H, D]. NEW in 04: the N tokens belong to many requests.
        """
        keys, values = self.k[layer], self.v[layer]  # [slots, H_kv, context length, D]
        keys[batch.slots, :, batch.positions] = k
        values[batch.slots, :, batch.positions] = v
        heads, groups = k.shape[1], q.shape[1] // k.shape[1]
        attended = torch.empty_like(q)
        for part in batch.parts:
            # The query heads that share a K/V head stand beside the tokens: K and V are read once for the group.
            queries = q[part.rows].view(part.requests, part.tokens, heads, groups, -1)  # [B, n, H_kv, H / H_kv, D]
            queries = queries.permute(0, 2, 1, 3, 4).flatten(2, 3)  # [B, H_kv, n * H / H_kv, D]
            past_k = keys[part.slots, :, : part.longest]  # [B, H_kv, S, D], a view: nothing is copied
            past_v = values[part.slots, :, : part.longest]
            result = F.scaled_dot_product_attention(queries, past_k, past_v, attn_mask=part.mask)
            result = result.unflatten(2, (part.tokens, groups)).transpose(1, 2)  # [B, n, H_kv, H / H_kv, D]
            attended[part.rows] = result.reshape(-1, *q.shape[1:])
        return attended
