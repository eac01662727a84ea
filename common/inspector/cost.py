"""What it costs to be watched: throughput with a page open and with none, in turn, on one server.

    python3 -m common.inspector.cost --stage 05 --clients 32 [--out FILE]

`page` is a process that reads the stream of updates, as an open page does, and draws nothing: what the engine loses by
being watched. The last line is JSON.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx

from common.bench.documents import write_json
from common.bench.hardware import hardware
from common.loader import load_model
from common.process import freeze_loaded_objects
from common.serving.background import running
from common.stages import load_engine, stage_folder

from .__main__ import parse
from .server import build_server
from .watched import Watched

READ = "import sys, urllib.request\nfor line in urllib.request.urlopen(sys.argv[1]): pass"
NAMES = ("none", "page")
PROMPT = {"prompt": "Tell me a story about a fox that lasts nine days.", "max_tokens": 128}


@contextmanager
def page(watched: Watched, url: str) -> Iterator[None]:
    """Watch from another process."""
    process = subprocess.Popen([sys.executable, "-c", READ, f"{url}/watch/events"], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: watched.feed.readers == 1)
        yield
    finally:
        process.terminate()
        process.wait()
    wait_for(lambda: watched.feed.readers == 0)


def wait_for(condition) -> None:
    while not condition():
        time.sleep(0.005)


def throughput(watched: Watched, url: str, clients: int) -> float:
    """Return the output tokens a second of this many requests at once, from the first step to the end of the last."""
    steps, tokens = watched.trace.steps, watched.stats()["generated_tokens"]
    body = PROMPT | {"count": clients}
    httpx.post(f"{url}/watch/send", json=body, headers={"Origin": url}, timeout=60).raise_for_status()
    wait_for(lambda: not watched.has_unfinished)
    time.sleep(0.2)  # the engine's thread has then counted its last step, and sleeps
    records = list(watched.trace)[steps - watched.trace.steps :]
    return (watched.stats()["generated_tokens"] - tokens) / (records[-1].end - records[0].start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="05")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there, too")
    args = parser.parse_args()
    stage, engine = stage_folder(args.stage), load_engine(args.stage)(load_model())
    server = build_server(engine, stage, parse(stage, ["--port", "0", "--steps-per-second", "0"]))
    freeze_loaded_objects()
    watched = server.watched
    rates: dict[str, list[float]] = {name: [] for name in NAMES}
    with running(server) as url:
        throughput(watched, url, args.clients)
        for repeat in range(args.repeats):
            for name in NAMES if repeat % 2 else reversed(NAMES):  # what drifts here meets both
                with page(watched, url) if name == "page" else nullcontext():
                    rates[name].append(throughput(watched, url, args.clients))
            print("  ".join(f"{name} {rate[-1]:.0f}" for name, rate in rates.items()), "tokens/s", flush=True)
    document = {
        "stage": args.stage,
        "clients": args.clients,
        "hardware": hardware(engine.device),
        "tokens_per_s": rates,
    }
    losses = [1 - rate / alone for rate, alone in zip(rates["page"], rates["none"], strict=True)]
    document["cost_of_page"] = {"median": statistics.median(losses), "lowest": min(losses), "highest": max(losses)}
    print(write_json(args.out, document) if args.out else json.dumps(document))


if __name__ == "__main__":
    main()
