"""How fast this machine runs stage 05, as one JSON line: the seconds until an engine is ready, and those of a step.

python -m common.bench.pace            # what doctor asks
python -m common.bench.pace --record   # on a quiet machine: times all demos, too, and writes what doctor expects
"""

import time

STARTED = time.monotonic()

import json  # noqa: E402 (the clock starts before anything is imported)
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402

from common.acceleration.accelerate import make_engine  # noqa: E402
from common.engine import BaseEngine  # noqa: E402
from common.loader import load_model  # noqa: E402
from common.setup.doctor import RECORDED  # noqa: E402
from common.stages import load_engine, stage_folders  # noqa: E402

from .documents import write_json  # noqa: E402
from .hardware import ROOT, hardware  # noqa: E402
from .steps import decoding, time_steps  # noqa: E402

REQUESTS, PROMPT, WARM_UP, STEPS = 8, 64, 8, 56


def measure() -> dict:
    loaded = load_model()
    engine = make_engine(load_engine("05"), loaded, kv_memory="64M")
    ready = time.monotonic() - STARTED
    return {
        "requests": REQUESTS,
        "step_ms": 1e3 * step_seconds(engine),
        "ready_seconds": ready,
        "device": loaded.device.type,
        "cuda": torch.version.cuda,
    }


def step_seconds(engine: BaseEngine) -> float:
    """Return the median seconds of steps in which all of REQUESTS requests decode."""
    with decoding(engine, REQUESTS, PROMPT, tokens=WARM_UP):
        return statistics.median(time_steps(engine, STEPS))


def record(pace: dict) -> None:
    """Time every stage's demo as its user starts it, and write recorded.json."""
    facts = hardware(torch.device(pace["device"]))
    document = {name: facts[name] for name in ("device", "cpu", "cpu_cores", "os", "python", "torch", "commit", "date")}
    document |= pace | {"demo_seconds": {}}
    for stage in stage_folders():
        start = time.monotonic()
        command = [sys.executable, str(stage / "main.py"), "--demo"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        document["demo_seconds"][stage.name[:2]] = seconds = time.monotonic() - start
        print(f"{stage.name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    write_json(RECORDED, document)


if __name__ == "__main__":
    pace = measure()
    print(json.dumps(pace))
    if "--record" in sys.argv:
        record(pace)
