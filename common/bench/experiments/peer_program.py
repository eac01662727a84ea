"""One engine in a process of its own: PYTHON peer_program.py < ORDER

peers.py calls `measure` for the course's own stages. For another engine it runs this file by its path, under the Python
of that engine's environment, and nothing of the course is imported there. The order is JSON on stdin, and the last line
on stdout is the answer. All engines are timed by the same loop on the same clock.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

Generate = Callable[[list[list[int]], int], list[list[int]]]  # prompts, output tokens of each -> greedy token ids


def course(order: dict) -> Generate:
    from common.bench.settings import engine_of
    from common.loader import load_model
    from common.sampling import SamplingParams

    options = {"device": "cpu", "dtype": order["dtype"], "quantization": order["quantization"]}
    engine = engine_of(order["stage"], load_model(order["model"], **options), draft="lookup", token_budget=2048)

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        return [one.token_ids for one in engine.generate(prompts, params)]

    return generate


def vllm(order: dict) -> Generate:
    from vllm import LLM, SamplingParams

    options = {"max_model_len": 1024, "enable_prefix_caching": False, "disable_log_stats": True}
    llm = LLM(order["model"], dtype=order["dtype"], **options)

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=tokens, detokenize=False)
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    return generate


def openvino(order: dict) -> Generate:
    import numpy
    import openvino_genai
    from openvino import Tensor

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens, scheduler.max_num_seqs, scheduler.cache_size = 2048, 64, 2  # cache_size: GB
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.LLMPipeline(order["model"], "CPU", scheduler_config=scheduler)
    config = openvino_genai.GenerationConfig()
    config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        config.max_new_tokens = tokens
        ids = numpy.array(prompts, dtype=numpy.int64)
        inputs = openvino_genai.TokenizedInputs(Tensor(ids), Tensor(numpy.ones_like(ids)))
        return [list(each) for each in pipeline.generate(inputs, config).tokens]

    return generate


def transformers(order: dict) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    dtype = getattr(torch, order["dtype"])
    model = AutoModelForCausalLM.from_pretrained(order["model"], dtype=dtype, attn_implementation="sdpa").eval()
    # By default max_requests_per_batch is the number of requests in the first call.
    most = {"max_batch_tokens": 2048, "max_requests_per_batch": len(order["warm_up"][-1])}
    batching = ContinuousBatchingConfig(allow_block_sharing=False, num_blocks=256, **most)

    def generate(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1)
        answers = model.generate_batch(prompts, config, batching, persistent_manager=True)
        return [one.generated_tokens for one in answers.values()]

    return generate


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def measure(order: dict) -> dict:
    """Return prompt and decode tokens per second at each load, the greedy answers, versions and settings."""
    generate = globals()[order["engine"]](order)
    for prompts in order["warm_up"]:
        generate(prompts, 8)
    rates = [rate(generate, load, order["tokens"]) for load in order["loads"]]
    answers = generate(order["compared"], order["tokens"]) if order["compared"] else []
    return {
        "prompts": [prompts for prompts, _ in rates],
        "decode": [decode for _, decode in rates],
        "answers": [" ".join(map(str, answer)) for answer in answers],
        "versions": {name: version_of(name) for name in order["packages"]},
        "settings": {name: without_folders(os.environ.get(name, "")) for name in order["settings"]},
    }


def without_folders(paths: str) -> str:
    """Return a list of paths without their folders, since results are published; other text stays as it is."""
    return " ".join(map(os.path.basename, paths.split(":")))


def rate(generate: Generate, load: list, tokens: int) -> tuple[float, float]:
    """Return prompt and decode tokens per second of a number of requests at once; `load` has pairs of such prompts.

    The answers to the first of a pair have one token: they take as long as the prompts do. Those to the second have
    `tokens`, and the extra time is decoding. No prompt is asked twice. The medians of the pairs' times count.
    """
    seconds = []
    for first, whole in load:
        start = time.perf_counter()
        generate(first, 1)
        middle = time.perf_counter()
        answers = generate(whole, tokens)
        seconds.append((middle - start, time.perf_counter() - middle))
        if [len(answer) for answer in answers] != [tokens] * len(whole):
            raise RuntimeError("an answer does not have as many tokens as it was asked for")
    prompts, all_of_it = map(statistics.median, zip(*seconds, strict=True))
    return sum(map(len, first)) / prompts, len(whole) * (tokens - 1) / (all_of_it - prompts)


if __name__ == "__main__":
    order = json.load(sys.stdin)
    print("\n" + json.dumps({"side": order["side"], "figures": measure(order)}), flush=True)
