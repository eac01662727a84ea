"""A workload by transformers' own continuous batching, on the same weights.

The library as it comes: its manager, which `generate_batch` wraps, chooses pages, tokens in a step, graphs and
attention by itself. It is used directly because each answer has its own length here, and `generate_batch` takes one for
all. Its time is that from the first request added to the last token; its own warm-up is not counted, nor that of a few
requests before.
"""

import time
from collections.abc import Sequence

import torch

from ..offline import transformers_model
from ..settings import Settings
from ..workloads import random_prompt

WARM_UP = 4  # requests
WAIT = 5.0  # seconds for a result, before asking whether its thread still lives


def serve(settings: Settings, jobs: Sequence[tuple[list[int], int]], sizes: dict) -> dict[str, float]:
    """Run all requests at once, after a few that warm up. Raise RuntimeError if an answer is missing or too short."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model, _ = transformers_model(settings)
    memory = ContinuousBatchingConfig(**sizes["memory"])
    config = GenerationConfig(
        do_sample=True, temperature=sizes["temperature"], top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
    )
    served = model.continuous_batching_context_manager(generation_config=config, continuous_batching_config=memory)
    with torch.no_grad(), served as manager:
        prompts = [random_prompt(len(prompt), 1000, f"warm-up {i}") for i, (prompt, _) in enumerate(jobs[:WARM_UP])]
        answer_all(manager, [(prompt, 16) for prompt in prompts])
        start = time.perf_counter()
        tokens = answer_all(manager, jobs)
        seconds = time.perf_counter() - start
    return {"tokens_per_second": tokens / seconds, "seconds": seconds}


def answer_all(manager, jobs: Sequence[tuple[list[int], int]]) -> int:
    """Return the output tokens of all jobs. Raise RuntimeError if its thread ends, or an answer is too short."""
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
