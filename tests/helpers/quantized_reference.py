"""The reference with quantised weights, unpacked to float32."""

import torch

from common.fused.quantized import QuantizedEmbedding, QuantizedLinear
from common.loader import Loaded
from common.loader.weights import checkpoint_names
from common.reference import Reference


@torch.no_grad()
def take_weights(loaded: Loaded) -> Reference:
    """Return the reference with what the model's quantised weights stand for."""
    reference = Reference()
    parameters = dict(reference.model.named_parameters())
    for name, tensor, rows in checkpoint_names(loaded.config):
        module = loaded.model.get_submodule(name.rpartition(".")[0])
        if isinstance(module, (QuantizedEmbedding, QuantizedLinear)) and name.endswith("weight"):
            parameters[tensor].copy_(module.quantized.rows(torch.arange(module.quantized.out_features))[rows])
    return reference
