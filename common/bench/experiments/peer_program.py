"""One side of peers.py in a process of its own: the same loop and the same clock for both engines.

    PYTHON peer_program.py < ORDER

peers.py calls `offline` for stage 06. For vLLM it writes the order, as JSON, and reads the last line of stdout, as
JSON: under the peer's Python this file is run by its path and imports vllm alone. "client" is vLLM's `bench serve`,
with one import for all loads.
"""

import json
import sys
import time
from collections.abc import Callable

Generate = Callable[[list], list]  # [[prompt's token ids, output tokens], ...] -> greedy token ids of each


def course(order: dict) -> Generate:
    from common.acceleration.accelerate import make_engine
    from common.bench.settings import Settings
    from common.sampling import SamplingParams
    from common.stages import load_engine

    engine = make_engine(load_engine("06"), Settings(order["folder"], "cpu", order["dtype"]).load())

    def generate(jobs: list) -> list:
        params = [SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True) for _, tokens in jobs]
        return [one.token_ids for one in engine.generate([prompt for prompt, _ in jobs], params)]

    return generate


def vllm(order: dict) -> Generate:
    from vllm import LLM, SamplingParams

    eager = order["side"] == "vLLM eager"
    llm = LLM(order["folder"], dtype=order["dtype"], max_model_len=1024, enforce_eager=eager,
              enable_prefix_caching=False, disable_log_stats=True)  # fmt: skip

    def generate(jobs: list) -> list:
        params = [SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True) for _, tokens in jobs]
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt, _ in jobs], params, use_tqdm=False)
        return [answer.outputs[0].token_ids for answer in answers]

    return generate


def offline(order: dict) -> dict:
    """Return output tokens per second at each load."""
    generate = (course if order["side"] == "stage 06" else vllm)(order)
    generate(order["warm_up"][:1])
    generate(order["warm_up"])
    # "quiet": an earlier experiment also measured beside a busy process.
    return {"quiet": [rate(generate, at_once, jobs) for at_once, jobs in order["loads"]]}


def rate(generate: Generate, at_once: int, jobs: list) -> float:
    """Return output tokens per second of all jobs, `at_once` together, the next ones when all of them are done."""
    start = time.perf_counter()
    answers = [answer for i in range(0, len(jobs), at_once) for answer in generate(jobs[i : i + at_once])]
    seconds = time.perf_counter() - start
    if [len(answer) for answer in answers] != [tokens for _, tokens in jobs]:
        raise RuntimeError("an answer does not have as many tokens as it was asked for")
    return sum(map(len, answers)) / seconds


def client(order: dict) -> dict:
    """Return what vLLM's `bench serve` reports for each load."""
    from vllm.benchmarks.serve import add_cli_args, main
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    return figures_of([main(parser.parse_args(words)) for words in order["commands"]])


def figures_of(reports: list) -> dict:
    """Return a list for each figure. Raise RuntimeError if a request failed."""
    for report in reports:
        if report["failed"]:
            raise RuntimeError(f"{report['failed']} requests failed")
    names = {"output_throughput": "tokens_per_second", "p99_itl_ms": "p99_itl_ms"}
    return {ours: [report[theirs] for report in reports] for theirs, ours in names.items()}


if __name__ == "__main__":
    order = json.load(sys.stdin)
    figures = (client if "commands" in order else offline)(order)
    print("\n" + json.dumps({"side": order["side"], "figures": figures}), flush=True)
