"""In one process, without a server: an engine of the course, and transformers' `generate`, timed token by token.

Both come as a `Write`: from a prompt of token ids and a number n, the moments of n greedy output tokens, in seconds
since the call. All offline figures are differences of these moments, so that both sides are measured by one rule.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from torch.nn.utils.rnn import pad_sequence

from common.loader import Loaded
from common.reference import read_gguf
from common.stages import load_engine

from .engine_load import answer
from .harness import Figures
from .settings import Settings
from .workloads import Job, page_prompt

Write = Callable[[list[int], int], list[float]]


def engine_writing(stage: str, settings: Settings, sizes: dict) -> Figures:
    """Measure the engine of a stage, such as "02_kv_cache"."""
    engine = load_engine(stage)(settings.load())

    def write(prompt: list[int], tokens: int) -> list[float]:
        timings = answer(engine, prompt, tokens).timings
        return [moment - timings.arrival for moment in timings.tokens]

    return measure_writing(write, settings, sizes)


def transformers_writing(settings: Settings, sizes: dict, *, use_cache: bool) -> Figures:
    """Measure transformers' `generate` as it comes, on the same weights, device and type."""
    model, device = transformers_model(settings)

    @torch.inference_mode()
    def write(prompt: list[int], tokens: int) -> list[float]:
        inputs, moments = torch.tensor([prompt], device=device), []
        # transformers gives it the prompt first, and then each token as soon as it is known.
        streamer = SimpleNamespace(put=lambda token_ids: moments.append(time.perf_counter()), end=lambda: None)
        start = time.perf_counter()
        model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=tokens,
            do_sample=False,
            use_cache=use_cache,
            streamer=streamer,
        )
        return [moment - start for moment in moments[1:]]

    return measure_writing(write, settings, sizes)


def transformers_model(settings: Settings):
    """Return transformers' model of the same weights, device and type, which never ends by itself; and the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    device, dtype = settings.place()
    if settings.load_format == "dummy":
        with device:
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(settings.folder()), dtype=dtype)
    elif settings.folder().is_file():
        model = read_gguf(settings.folder()).to(device, dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(settings.folder(), dtype=dtype).to(device)
    model.eval()
    model.generation_config.eos_token_id = None  # write all the tokens asked for
    return model, device


def measure_writing(write: Write, settings: Settings, sizes: dict) -> Figures:
    """Time one more token at each of `lengths`, and answers of each of `answers` tokens after a `prompt`.

    The lengths take turns, `steps` tokens each in every round: a disturbance of several rounds slows all of them, and a
    shorter one few steps of each. The median is over all steps. Then one long answer is written: the moment of its n-th
    token is the time that an answer of n tokens takes.
    """
    loaded = settings.without_weights()
    prompt, steps = page_prompt(loaded, sizes["prompt"]), sizes["steps"]
    write(prompt, 8)  # warm-up
    rounds = [
        [step_seconds(write, length, steps, loaded) for length in sizes["lengths"]] for _ in range(sizes["rounds"])
    ]
    ms_per_token = [1e3 * statistics.median(itertools.chain(*steps)) for steps in zip(*rounds, strict=True)]
    moments = write(prompt, max(sizes["answers"]))
    return {"ms_per_token": ms_per_token, "seconds": [moments[n - 1] for n in sizes["answers"]]}


def step_seconds(write: Write, length: int, steps: int, loaded: Loaded) -> list[float]:
    """Return the time of each of the last `steps` tokens of a sequence that ends at `length` tokens.

    The token before them is left out: it pays for the prompt, and for what a library does once for each shape.
    """
    moments = write(page_prompt(loaded, length - steps - 1), steps + 1)
    return [after - before for before, after in itertools.pairwise(moments)]


def transformers_static_batches(settings: Settings, jobs: Sequence[Job], group: int) -> float:
    """Return output tokens per second of `generate` on groups of requests, as a server that batches with it runs them.

    Prompts are padded on the left to the longest of the group, and the group runs until its longest answer is done;
    only the tokens that were asked for count.
    """
    model, device = transformers_model(settings)

    @torch.inference_mode()
    def run(jobs: Sequence[Job]) -> None:
        prompts = [torch.tensor(job.prompt, device=device) for job in jobs]
        ones = [torch.ones_like(prompt) for prompt in prompts]
        ids, mask = (pad_sequence(rows, batch_first=True, padding_side="left") for rows in (prompts, ones))
        tokens = max(job.max_tokens for job in jobs)
        model.generate(ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)

    run(jobs[:2])  # warm-up
    start = time.perf_counter()
    for first in range(0, len(jobs), group):
        run(jobs[first : first + group])
    return sum(job.max_tokens for job in jobs) / (time.perf_counter() - start)
