"""How fast this machine runs stage 05, and what follows for the demos: what `doctor` says, as one JSON line.

    python -m common.bench.pace --record

times every stage's demo as its user starts it, on a quiet machine, and writes recorded.json, which the expectations of
every other machine follow from.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

STARTED = time.monotonic()  # before anything is imported that takes time
RECORDED = Path(__file__).with_name("recorded.json")
REQUESTS, PROMPT, WARM_UP, STEPS = 8, 64, 8, 56
COMPILING = "compiling kernels"  # what a start says of kernels that it does not find


def main(arguments: list[str]) -> None:
    if "--measure" in arguments:
        print(json.dumps(measure()))
        return
    pace, said = measure_apart()
    if "--record" in arguments:
        record(pace)
        return
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    print(json.dumps({**pace, "said": said, "expect": expectations(pace, recorded)}))


def measure() -> dict:
    """Return the seconds until an engine is ready, and the milliseconds of a step in which all requests decode."""
    import torch

    from common.acceleration.accelerate import make_engine
    from common.loader import load_model
    from common.stages import load_engine

    from .steps import decode_seconds

    loaded = load_model()
    engine = make_engine(load_engine("05"), loaded, kv_memory="64M")
    ready = time.monotonic() - STARTED
    return {
        "step_ms": 1e3 * decode_seconds(engine, REQUESTS, PROMPT, WARM_UP, STEPS),
        "ready_seconds": ready,
        "device": loaded.device.type,
        "cuda": torch.version.cuda,
    }


def measure_apart() -> tuple[dict, str]:
    """Return what a fresh process measures, as a user starts one, and say it in words.

    It measures again if kernels had to be compiled: no later start waits for that.
    """
    command = [sys.executable, "-m", "common.bench.pace", "--measure"]
    first = result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if COMPILING in first.stderr and not first.returncode:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode:
        sys.exit((result.stderr.splitlines() or ["no reason given"])[-1])
    pace, cold = (json.loads(one.stdout.splitlines()[-1]) for one in (result, first))
    said = f"one step in which {REQUESTS} requests decode: {pace['step_ms']:.1f} ms on {pace['device']}"
    if result is not first:
        seconds = max(0.0, cold["ready_seconds"] - pace["ready_seconds"])
        said += f"; its kernels were not compiled yet, which took {seconds:.0f} s, once on this machine"
    return pace, said


def expectations(pace: dict, recorded: dict) -> list[str]:
    """Say what to expect: of recorded times the start as it was measured here, the rest as a step stands to a step."""
    if pace["device"] != recorded.get("device"):
        return [f"No times of demos are recorded for {pace['device']} that this could be compared with."]
    ratio = pace["step_ms"] / recorded["step_ms"]

    def here(seconds: float) -> float:
        return pace["ready_seconds"] + max(0.0, seconds - recorded["ready_seconds"]) * ratio

    there = f"Where the demos were timed ({recorded['cpu']}, {recorded['cpu_cores']} cores, {recorded['date']})"
    demos = {name: here(seconds) for name, seconds in recorded["demo_seconds"].items()}
    return [
        f"{there} that step takes {recorded['step_ms']:.1f} ms: what follows is {ratio:.2f} times as long, beside the "
        "start.",
        f"Expect of `demo`: {', '.join(f'{name} in {seconds:.0f} s' for name, seconds in demos.items())}.",
        f"Expect of all demos together {sum(demos.values()) / 60:.1f} minutes.",
    ]


def record(pace: dict) -> None:
    """Time every stage's demo, and write recorded.json."""
    import torch

    from common.stages import ROOT, stage_folders

    from .documents import write_json
    from .hardware import hardware

    facts = hardware(torch.device(pace["device"]))
    document = {name: facts[name] for name in ("cpu", "cpu_cores", "os", "python", "torch", "commit", "date")}
    document |= pace | {"demo_seconds": {}}
    for stage in stage_folders():
        start = time.monotonic()
        command = [sys.executable, str(stage / "main.py"), "--demo"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        document["demo_seconds"][stage.name[:2]] = seconds = time.monotonic() - start
        print(f"{stage.name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    write_json(RECORDED, document)


if __name__ == "__main__":
    main(sys.argv[1:])
