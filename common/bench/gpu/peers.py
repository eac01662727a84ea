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


def prompts_of(settings: Settings, sizes: dict) -> list[list[int]]:
    return [random_prompt(sizes["prompt"], settings.config().vocab_size, i) for i in range(sizes["requests"])]


def rate_of(write: Callable[[list[list[int]], int], object], settings: Settings, sizes: dict) -> Figures:
    """Return output tokens per second of `write(prompts, tokens of each answer)`, which ends with the last token."""
    prompts = prompts_of(settings, sizes)
    write(prompts, 2)  # warm-up
    start = time.perf_counter()
    write(prompts, sizes["answer"])
    return {"tokens_per_second": len(prompts) * sizes["answer"] / (time.perf_counter() - start)}


def measure_engine(settings: Settings, sizes: dict) -> Figures:
    engine = engine_of("06", settings.load(), max_running=sizes["requests"])

    def write(prompts: list[list[int]], tokens: int) -> None:
        engine.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True))

    return rate_of(write, settings, sizes)


def measure_generate(settings: Settings, sizes: dict) -> Figures:
    jobs = [Job(prompt, sizes["answer"]) for prompt in prompts_of(settings, sizes)]
    return {"tokens_per_second": transformers_static_batches(settings, jobs, group=len(jobs))}


def measure_generate_batch(settings: Settings, sizes: dict) -> Figures:
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model, _ = transformers_model(settings)
    batching = ContinuousBatchingConfig(use_cuda_graph=False, **sizes["batching"])

    def write(prompts: list[list[int]], tokens: int) -> None:
        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        found = model.generate_batch(prompts, generation_config=config, continuous_batching_config=batching)
        if any(len(each.generated_tokens) != tokens for each in found.values()) or len(found) < len(prompts):
            raise ValueError("generate_batch did not write all tokens")

    return rate_of(write, settings, sizes)


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
        "06_prefix_cache": measure_engine,
        "generate": measure_generate,
        "generate_batch": measure_generate_batch,
        "agreement": measure_agreement,
    },
    sizes={"full": SIZES, "tiny": TINY},
    report=report,
    seconds={"gpu": 45},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
