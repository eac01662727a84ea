"""Once an engine has been made, serving compiles nothing: no request waits for a compiler.

Triton compiles a kernel again for each type that it is launched with, for numbers that are 1 or a multiple of 16, and
for pointers that are a multiple of 16 or not. So this is a whole serving run with the pretended driver: requests of
random lengths come and go, kernels are compiled for an H100 when they are first launched, and do nothing. All results
are zeros, which does not matter here: what is launched depends on lengths.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import torch
from pretended_gpu import pretended_gpu, replaced

from common import attention, fused, sampling, sampling_kernels
from common.acceleration import accelerate, graphs
from common.attention import triton_backend
from common.fused import rotation, triton_kernels
from common.loader import Loaded, find_checkpoint
from common.loader.config import read_config
from common.loader.weights import empty_model, randomize_weights
from common.sampling import SamplingParams
from common.stages import load_engine

# Stages, with graphs and without; kernels and graphs of 05 are those of 06.
RUNS = (("06", True), ("06", False), ("07", True))
OPTIONS = {"max_running": 40, "token_budget": 256, "kv_memory": "8M", "attention": "triton"}
SPECULATIVE = {"draft": "lookup", "num_draft_tokens": 2}


class FreshZeros:
    """torch, whose fresh memory is zeros."""

    empty, empty_like = staticmethod(torch.zeros), staticmethod(torch.zeros_like)

    def __getattr__(self, name: str):
        return getattr(torch, name)


def as_if_on_a_gpu():
    """Treat the engine's CPU tensors as if they were on CUDA; kernels write nothing, so their results are zeros."""
    return replaced(
        (attention, "why_not_triton", lambda device: None),
        (fused, "why_not_triton", lambda device: None),
        (accelerate, "why_no_graphs", lambda *_: None),
        (graphs, "Capture", lambda: lambda function: function() or function),
        (sampling, "has_kernels", lambda device: True),
        *((module, "torch", FreshZeros()) for module in (triton_backend, triton_kernels, rotation, sampling_kernels)),
    )


def small_model() -> Loaded:
    """One layer with the heads of Qwen3-0.6B, and hardly anything around them."""
    config = read_config(find_checkpoint("Qwen3-0.6B", with_weights=False))
    config = replace(config, num_layers=1, vocab_size=512, hidden_size=64, intermediate_size=64)
    model = empty_model(config, torch.device("cpu"), torch.bfloat16)
    randomize_weights(model)
    return Loaded(fused.fuse(model), None, config, frozenset(), "one layer", torch.device("cpu"), torch.bfloat16)


def prove() -> Iterator[str]:
    """Yield what is wrong, one sentence each."""
    for stage, with_graphs in RUNS:
        with pretended_gpu(90) as compiled, as_if_on_a_gpu():
            options = OPTIONS | (SPECULATIVE if stage == "07" else {})
            engine = accelerate.make_engine(load_engine(stage), small_model(), with_graphs, stage != "07", **options)
            at_start, steps = len(compiled), serve(engine)
        late, mode = [one.kernel for one in compiled[at_start:]], "with graphs" if with_graphs else "without graphs"
        print(f"stage {stage} {mode}: {at_start} kernels compiled at the start, {len(late)} in {steps} steps")
        if late:
            yield f"stage {stage} {mode}: compiled while serving: {', '.join(late)}"


def serve(engine) -> int:
    """Serve 30 requests of random lengths, which come at random times; return the number of steps."""
    rng, steps = random.Random(0), 0
    waiting = [(rng.randint(1, 600), rng.randint(1, 60)) for _ in range(30)]
    while waiting or engine.has_unfinished:
        while waiting and len(engine.requests) < 60 and rng.random() < 0.4:
            prompt, answer = waiting.pop()
            params = SamplingParams(max_tokens=answer, temperature=float(rng.random() < 0.7), ignore_eos=True)
            engine.add([rng.randrange(512) for _ in range(prompt)], params)
        engine.step()
        steps += 1
    return steps
