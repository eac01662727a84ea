"""The reference with K and V of 8 bits: transformers' model, whose attention sees them rounded."""

import torch

from common.attention.int8 import dequantize, quantize


def round_keys_and_values(model: torch.nn.Module) -> None:
    """Let this model of the transformers library attend with K and V of 8 bits.

    Each pass rounds all of its cache in the same way, so it is as if rounded numbers had been kept.
    """
    # Imported here: each process that collects tests would need half a second for them.
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def rounded_attention(module, query, key, value, *more, **options):
        key, value = (dequantize(quantize(x), x.dtype) for x in (key, value))
        return sdpa_attention_forward(module, query, key, value, *more, **options)

    AttentionInterface.register("int8", rounded_attention)
    AttentionMaskInterface.register("int8", sdpa_mask)
    model.set_attn_implementation("int8")
