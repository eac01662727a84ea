"""The workload of `throughput` by transformers' own continuous batching, on random weights of the same config.

Method. The library as it comes: its manager, which `generate_batch` wraps, chooses pages, tokens in a step, graphs and
attention by itself. It is used directly because each answer has its own length here, and `generate_batch` takes one for
all. Its time, too, is that from the first request added to the last token; its own warm-up is not counted, nor that of
a few requests before.

Whether it runs depends on the version and on which attention packages there are. If it does not, the document says what
it said, and the part is complete.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from common.bench.workloads import random_prompt
from common.loader.config import first_sentence

from . import throughput
from .run import Run, config_folder, peak_memory_gib

SIZES: dict[str, Any] = throughput.SIZES | {"warm_up": 8, "memory": {}}
TINY = throughput.TINY | {
    "warm_up": 2,
    "memory": {"num_blocks": 32, "max_batch_tokens": 64},
}  # or it takes all there is
WAIT = 5.0  # seconds for a result, before asking whether its thread still lives


def measure(run: Run) -> None:
    jobs = throughput.workload(run.sizes)
    try:
        figures = serve(run, jobs)
    except Exception as error:  # what it raises depends on its version, and all of it is a result here
        figures = {"tokens_per_second": None, "error": f"{type(error).__name__}: {first_sentence(error)}"}
        run.say(f"transformers could not do it: {figures['error']}")
    run.keep(**figures)
    run.headline(tokens_per_second=figures["tokens_per_second"])


def serve(run: Run, jobs: Sequence[tuple[list[int], int]]) -> dict[str, Any]:
    """All requests at once, after a few that warm up. RuntimeError if an answer is missing or too short."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = random_model(run)
    memory = ContinuousBatchingConfig(**run.sizes["memory"])
    config = GenerationConfig(
        do_sample=True, temperature=run.sizes["temperature"], top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
    )
    served = model.continuous_batching_context_manager(generation_config=config, continuous_batching_config=memory)
    with torch.no_grad(), served as manager:
        warm_up = [random_prompt(len(jobs[i][0]), 1000, f"warm-up {i}") for i in range(run.sizes["warm_up"])]
        answer_all(manager, [(prompt, 16) for prompt in warm_up])
        start = time.perf_counter()
        tokens = answer_all(manager, jobs)
        seconds = time.perf_counter() - start
    run.say(f"transformers: {tokens / seconds:,.0f} output tokens per second")
    return {
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "peak_memory_gib": peak_memory_gib(run.device),
        "attention": model.config._attn_implementation,
    }


def random_model(run: Run):
    """transformers' class for the config of this part, random weights, in the device's usual type."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with config_folder(run.sizes["model"]) as folder:
        config = AutoConfig.from_pretrained(folder)
    run.document["settings"] |= {
        "model": run.sizes["model"],
        "dtype": str(run.dtype).removeprefix("torch."),
        "load_format": "dummy",
    }
    with run.device:
        return AutoModelForCausalLM.from_config(config, dtype=run.dtype).eval()


def answer_all(manager, jobs: Sequence[tuple[list[int], int]]) -> int:
    """Output tokens of all jobs; RuntimeError if its thread has ended, or an answer is not as long as was asked for."""
    wanted = {manager.add_request(prompt, max_new_tokens=answer, eos_token_id=-1): answer for prompt, answer in jobs}
    if None in wanted:
        raise RuntimeError("it takes no requests")
    total = 0
    while wanted:
        result = manager.get_result(timeout=WAIT)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("its generation thread has ended before the last answer")
            continue
        if result.error is not None:
            raise RuntimeError(f"a request failed: {result.error}")
        if result.is_finished() and (answer := wanted.pop(result.request_id, None)):
            if len(result.generated_tokens) != answer:
                raise RuntimeError(f"an answer has {len(result.generated_tokens)} tokens, not {answer}")
            total += answer
    return total
