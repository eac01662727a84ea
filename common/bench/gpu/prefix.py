"""What is it worth on a GPU not to compute the same beginning twice? Stages 05 and 06, the workloads of stage 06.

Method. Prompts of 2,000 random tokens of which the first 0, 50 or 90 percent are the same in all: the time to first
token of one request after another, and the throughput of many clients; and a conversation, in which every turn sends
all turns before it. Both stages with the same model and options, in one process.

Expectation. On a GPU a prefill of 2,000 tokens is arithmetic, some 60 ms for 8 billion parameters, and a step cannot be
shorter than it takes to read the weights, some 4 ms. So with 90 percent in the cache the first token comes some 10
times sooner (predicted: what is left of the prompt, at the rate that the whole one ran at, or the weights).
"""

from pathlib import Path
from typing import Any

from common.bench import plots
from common.bench.engine_load import engine_load
from common.bench.harness import spread
from common.bench.predict import step_flops
from common.bench.workloads import Job, random_prompt
from common.engine import BaseEngine
from common.loader import Loaded
from common.sampling import SamplingParams

from .run import Run, free_memory

BEFORE, NOW = "05_paged_attention", "06_prefix_cache"
SIZES: dict[str, Any] = {
    "model": "Qwen3-8B",
    "prompt": 2000,
    "shared_percent": [0, 50, 90],
    "one_by_one": 7,  # requests whose time to first token is taken
    "together": 32,  # requests whose throughput is taken
    "clients": 16,
    "output": 32,
    "turns": 8,
    "turn_tokens": [400, 32],  # of the user's message, and of the answer
    "token_budget": 8192,
    "kv_tokens": 120_000,  # room for all that one engine is asked
}
TINY = SIZES | {
    "model": "tiny",
    "prompt": 60,
    "one_by_one": 2,
    "together": 3,
    "clients": 2,
    "output": 3,
    "turns": 2,
    "turn_tokens": [30, 3],
    "token_budget": 128,
    "kv_tokens": 2000,
}


def measure(run: Run) -> None:
    sizes, sides = run.sizes, {}
    loaded = run.load(sizes["model"])
    for stage in (BEFORE, NOW):
        sides[stage] = {"ttft_ms": [], "tokens_per_second": [], "turn_ttft_ms": []}
        for percent in sizes["shared_percent"]:
            engine = new_engine(run, stage, loaded)
            sides[stage]["ttft_ms"].append(spread(first_tokens(engine, sizes, percent)))
            sides[stage]["tokens_per_second"].append(throughput(engine, sizes, percent))
            run.keep(sides=sides)
            median = sides[stage]["ttft_ms"][-1]["median"]
            run.say(f"{stage}, {percent} percent shared: first token after {median:.1f} ms")
            del engine
            free_memory(run.device)
        engine = new_engine(run, stage, loaded)
        sides[stage]["turn_ttft_ms"] = conversation(engine, sizes)
        run.keep(sides=sides)
        del engine
        free_memory(run.device)
    run.keep(predicted_ttft_ms=predictions(run, loaded, sides[BEFORE]["ttft_ms"][0]["median"]))
    ratios = {
        percent: before["median"] / now["median"]
        for percent, before, now in zip(
            sizes["shared_percent"], sides[BEFORE]["ttft_ms"], sides[NOW]["ttft_ms"], strict=True
        )
    }
    run.headline(**{f"first token sooner at {percent} %": ratio for percent, ratio in ratios.items()})


def new_engine(run: Run, stage: str, loaded: Loaded) -> BaseEngine:
    """An empty engine that is warm."""
    sizes = run.sizes
    kv_memory = sizes["kv_tokens"] * loaded.config.kv_bytes_per_token(loaded.dtype)
    engine = run.engine(stage, loaded, token_budget=sizes["token_budget"], kv_memory=kv_memory)
    for length in (sizes["prompt"], sizes["prompt"] // 2, sizes["prompt"] // 10):
        prompts = [random_prompt(length, loaded.config.vocab_size, f"warm-up {length} {i}") for i in range(2)]
        engine.generate(prompts, SamplingParams(max_tokens=4, ignore_eos=True))
    return engine


def prompts_alike(sizes: dict[str, Any], percent: int, count: int, vocab_size: int, what: str) -> list[list[int]]:
    """Prompts of which so many percent are the same in all."""
    shared = sizes["prompt"] * percent // 100
    beginning = random_prompt(shared, vocab_size, "beginning")
    rest = sizes["prompt"] - shared
    return [beginning + random_prompt(rest, vocab_size, f"{what} {percent} {i}") for i in range(count)]


def first_tokens(engine: BaseEngine, sizes: dict[str, Any], percent: int) -> list[float]:
    """Milliseconds to the first token of each of several requests, alone; the one before them fills the cache."""
    prompts = prompts_alike(sizes, percent, 1 + sizes["one_by_one"], engine.config.vocab_size, "alone")
    requests = [engine.generate([prompt], SamplingParams(max_tokens=1))[0] for prompt in prompts]
    return [1e3 * request.timings.time_to_first_token for request in requests[1:]]


def throughput(engine: BaseEngine, sizes: dict[str, Any], percent: int) -> float:
    """Output tokens per second of many clients."""
    prompts = prompts_alike(sizes, percent, sizes["together"], engine.config.vocab_size, "together")
    jobs = [Job(prompt, sizes["output"]) for prompt in prompts]
    return engine_load(engine, jobs, concurrency=sizes["clients"]).throughput


def conversation(engine: BaseEngine, sizes: dict[str, Any]) -> list[float]:
    """Milliseconds to the first token of each turn of one client."""
    said, ttft, (message, answer) = [], [], sizes["turn_tokens"]
    for turn in range(sizes["turns"]):
        said = said + random_prompt(message, engine.config.vocab_size, f"turn {turn}")
        [request] = engine.generate([said], SamplingParams(max_tokens=answer, ignore_eos=True))
        ttft.append(1e3 * request.timings.time_to_first_token)
        said = request.all_token_ids
    return ttft


def predictions(run: Run, loaded: Loaded, whole_ms: float) -> list[float]:
    """Milliseconds of a step that runs what is not shared, from the time of a whole prompt; a step that reads all
    weights at least."""
    config, prompt = loaded.config, run.sizes["prompt"]
    least = 1e3 * run.step_floor(config, 1, prompt)
    predicted = []
    for percent in run.sizes["shared_percent"]:
        shared = prompt * percent // 100
        left = step_flops(config, prompt - shared, shared) / step_flops(config, prompt)
        predicted.append(max(whole_ms * left, least))
    return predicted


def draw(document: dict, png: Path, others: dict[str, dict]) -> None:
    sizes, figures = document["sizes"], document["figures"]
    sides, percents = figures["sides"], sizes["shared_percent"]
    ratio = sides[BEFORE]["ttft_ms"][-1]["median"] / sides[NOW]["ttft_ms"][-1]["median"]
    message = f"With {percents[-1]} percent of a prompt in the cache, the first token comes {ratio:.1f} times sooner"
    message_tokens, answer = sizes["turn_tokens"]
    remark = (
        f"Prompts of {sizes['prompt']:,} tokens, medians of {sizes['one_by_one']} requests; throughput of "
        f"{sizes['clients']} clients, answers of {sizes['output']} tokens, one run.\nA turn adds {message_tokens} "
        f"tokens and {answer} of the answer. Predicted: what is left of the prompt, at the rate of a whole one, or the "
        "time to read the weights."
    )
    with plots.page(png, document, message, columns=3, remark=remark) as (first, rate, turns):
        plots.predicted(first, percents, {"median": figures["predicted_ttft_ms"]}, "predicted")
        for stage, label in ((BEFORE, "stage 05"), (NOW, "stage 06")):
            ttft = {key: [one[key] for one in sides[stage]["ttft_ms"]] for key in ("median", "min", "max")}
            plots.line(first, percents, ttft, stage, label)
            for panel, x, name in (
                (rate, percents, "tokens_per_second"),
                (turns, list(range(1, 1 + sizes["turns"])), "turn_ttft_ms"),
            ):
                values = sides[stage][name]
                plots.line(panel, x, {"median": values, "min": values, "max": values}, stage, label)
        plots.axes(first, "percent of the prompt shared", "milliseconds", "Time to first token")
        plots.axes(rate, "percent of the prompt shared", "output tokens per second", "Throughput")
        plots.axes(turns, "turn of the conversation", "milliseconds", "First token in a chat")
        for panel in (first, rate):
            panel.set_xticks(percents)
        turns.set_xticks(range(1, 1 + sizes["turns"]))
