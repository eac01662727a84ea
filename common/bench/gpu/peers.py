"""How many tokens a second does the transformers library write on this device, beside stage 06?

Method. Requests of equal length, all known from the start: by stage 06, by `generate` as one static batch, and by
`generate_batch`, the library's continuous batching, with its attention for pages that needs no further package. And
after how many greedy tokens stage 06 in bfloat16 leaves what the library writes in float32.

Expectation. Both launch each kernel from Python, which costs them more than the kernels. Tokens differ where two are
about as likely: a product is rounded otherwise for each size of a batch.
"""

import time
from collections.abc import Callable

from common.bench.harness import Benchmark, Figures
from common.bench.offline import transformers_model, transformers_static_batches
from common.bench.run import run_benchmark
from common.bench.settings import Settings, engine_of
from common.bench.workloads import Job, random_prompt
from common.reference import Reference
from common.sampling import SamplingParams

SIZES = {"model": "Qwen3-0.6B", "requests": 64, "prompt": 256, "answer": 128, "compared": 32}
SIZES |= {"batching": {"max_memory_percent": 0.5}}  # of `generate_batch`
TINY = {"model": "draft", "requests": 2, "prompt": 8, "answer": 4, "compared": 4}
TINY |= {"batching": {"num_blocks": 16, "max_batch_tokens": 64}}
SENTENCES = ("The capital of France is", "Once upon a time, there was", "What is 2+2?", "Explain KV cache.")
Write = Callable[[list[Job]], object]  # it returns when all requests have all their tokens


def engine_writer(settings: Settings, sizes: dict) -> Write:
    engine = engine_of("06", settings.load(), max_running=sizes["requests"])
    return lambda jobs: engine.generate(
        [job.prompt for job in jobs], [SamplingParams(max_tokens=job.max_tokens, ignore_eos=True) for job in jobs]
    )


def batch_writer(settings: Settings, sizes: dict) -> Write:
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model, _ = transformers_model(settings)
    batching = ContinuousBatchingConfig(use_cuda_graph=False, **sizes["batching"])

    def write(jobs: list[Job]) -> None:
        tokens = jobs[0].max_tokens
        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        prompts = [job.prompt for job in jobs]
        found = model.generate_batch(prompts, generation_config=config, continuous_batching_config=batching)
        if [len(each.generated_tokens) for each in found.values()] != [tokens] * len(jobs):
            raise ValueError("generate_batch did not write all tokens")

    return write


def measure(writer: Callable[[Settings, dict], Write]) -> Callable[[Settings, dict], Figures]:
    """Return a side: output tokens per second."""

    def side(settings: Settings, sizes: dict) -> Figures:
        write, jobs = writer(settings, sizes), jobs_of(settings, sizes)
        write([Job(job.prompt, 2) for job in jobs])  # warm-up
        start = time.perf_counter()
        write(jobs)
        return {"tokens_per_second": len(jobs) * sizes["answer"] / (time.perf_counter() - start)}

    return side


def jobs_of(settings: Settings, sizes: dict) -> list[Job]:
    vocabulary = settings.config().vocab_size
    return [Job(random_prompt(sizes["prompt"], vocabulary, i), sizes["answer"]) for i in range(sizes["requests"])]


def measure_generate(settings: Settings, sizes: dict) -> Figures:
    return {"tokens_per_second": transformers_static_batches(settings, jobs_of(settings, sizes), sizes["requests"])}


def measure_agreement(settings: Settings, sizes: dict) -> Figures:
    """Return for each sentence how many tokens are those of the reference, of as many as are compared."""
    settings = Settings(device=settings.device, dtype="bfloat16")
    engine, reference = engine_of("06", settings.load(), kv_memory="256M"), Reference(device=settings.place()[0])
    params, same = SamplingParams(max_tokens=sizes["compared"], ignore_eos=True), []
    for answer in engine.generate(SENTENCES, params):
        expected = reference.generate(answer.prompt_token_ids, sizes["compared"], ignore_eos=True)
        differ = [a != b for a, b in zip(answer.token_ids, expected, strict=True)]
        same.append(differ.index(True) if any(differ) else len(differ))
    return {"tokens_alike": same}


def report(document: dict) -> dict[str, list]:
    """Return a line for each side."""
    lines = [
        (name, *(f"{key}: {each['median']}" for key, each in side.items())) for name, side in document["sides"].items()
    ]
    return {"peers": lines}


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={
        "06_prefix_cache": measure(engine_writer),
        "generate": measure_generate,
        "generate_batch": measure(batch_writer),
        "agreement": measure_agreement,
    },
    sizes={"full": SIZES, "tiny": TINY},
    report=report,
    seconds={"gpu": 45},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
