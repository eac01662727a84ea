"""Tensor parallelism: several processes share a model, each with a part of every layer (Megatron-LM, 2019)."""
