"""What it costs to be watched: throughput with a page open and with none, in turn, on one engine.

    python3 -m common.inspector.cost --stage 05 --clients 32

The page is stood in for by a reader that takes every update, as an event loop does; a browser on the same machine costs
what it draws, beside that. The last line is JSON.
"""

import argparse
import json
import statistics
import time
from random import Random

from common.loader import load_model
from common.process import freeze_loaded_objects
from common.sampling import SamplingParams
from common.stages import load_engine

from .scenes import Tape
from .watched import Watched

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 96


def throughput(watched: Watched, clients: int, seed: int) -> float:
    """Output tokens a second of so many requests at once, from the first step to the last."""
    rng = Random(seed)
    for _ in range(clients):
        prompt = [rng.randrange(2, 4000) for _ in range(PROMPT_TOKENS)]
        watched.add(prompt, SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True))
    start = time.perf_counter()
    while watched.has_unfinished:
        watched.step()
    return clients * OUTPUT_TOKENS / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="05")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    watched = Watched(load_engine(args.stage)(load_model()))
    closed, rates, shares = watched.feed, {"closed": [], "open": []}, []
    freeze_loaded_objects()
    throughput(watched, args.clients, 0)
    for repeat in range(args.repeats):
        # Alternating order: what drifts on this machine meets both.
        for name in ("closed", "open") if repeat % 2 else ("open", "closed"):
            watched.feed = Tape() if name == "open" else closed
            rates[name].append(throughput(watched, args.clients, repeat))
        shares.append(1 - rates["open"][-1] / rates["closed"][-1])
        print(f"no page {rates['closed'][-1]:7.0f}   a page {rates['open'][-1]:7.0f} tokens/s", flush=True)
    median = {name: statistics.median(each) for name, each in rates.items()}
    print(json.dumps({"stage": args.stage, "clients": args.clients, "rates": rates, "median": median,
                      "cost": statistics.median(shares)}))  # fmt: skip


if __name__ == "__main__":
    main()
