"""Tensor parallelism: several processes share a model, each with a part of every layer (Megatron-LM, 2019).

shard.py cuts the model, ranks.py runs the processes, engine.py drives the engine of a stage on all of them.
"""
