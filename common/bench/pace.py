"""How fast this machine runs stage 05, and what follows for the demos: what `doctor` says, as one JSON line.

    python -m common.bench.pace record [bench]

times every stage's demo, and with `bench` every benchmark, as their user starts them, on a quiet machine, and writes
recorded.json, which the expectations of every other machine follow from.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STARTED = time.monotonic()  # before anything is imported that takes time
RECORDED = Path(__file__).with_name("recorded.json")
REQUESTS, PROMPT, TOKENS, WARM_UP = 8, 64, 64, 8
MOST_SECONDS = 20
COMPILING = "compiling kernels"  # what a start says of kernels that it does not find


def main(arguments: list[str]) -> None:
    if "--measure" in arguments:
        print(json.dumps(measure()))
        return
    pace, said = measure_apart()
    if "record" in arguments:
        record(pace, "bench" in arguments)
        return
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    print(json.dumps({**pace, "said": said, "expect": expectations(pace, recorded)}))


def measure() -> dict:
    """Return the seconds until an engine is ready, and the milliseconds of a step in which all requests decode."""
    import torch

    from common.acceleration.accelerate import make_engine
    from common.loader import load_model
    from common.stages import load_engine

    loaded = load_model()
    engine = make_engine(load_engine("05"), loaded, kv_memory="64M")
    ready = time.monotonic() - STARTED
    return {
        "step_ms": 1e3 * statistics.median(step_seconds(engine, loaded.config.vocab_size)),
        "ready_seconds": ready,
        "device": loaded.device.type,
        "cuda": torch.version.cuda,
    }


def step_seconds(engine, vocab_size: int) -> list[float]:
    """Return the seconds of steps in which all of REQUESTS requests decode, without the first WARM_UP.

    Exit with a sentence if there are none after MOST_SECONDS.
    """
    from common.sampling_params import SamplingParams

    for number in range(REQUESTS):
        prompt = [(number * PROMPT + place) % vocab_size for place in range(PROMPT)]
        engine.add(prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    give_up = time.monotonic() + MOST_SECONDS
    while engine.has_unfinished and time.monotonic() < give_up:
        engine.step()
    steps = [step for step in engine.trace if [work.phase for work in step.works] == ["decode"] * REQUESTS]
    if len(steps) <= WARM_UP:
        sys.exit(f"{len(steps)} steps took {MOST_SECONDS} s: end what keeps the cores busy, and try again")
    return [step.seconds for step in steps[WARM_UP:]]


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
    lines = [
        f"{there} that step takes {recorded['step_ms']:.1f} ms: what follows is {ratio:.2f} times as long, beside the "
        "start.",
        f"Expect of `demo`: {', '.join(f'{name} in {seconds:.0f} s' for name, seconds in demos.items())}.",
        f"Expect of all demos together {sum(demos.values()) / 60:.1f} minutes.",
    ]
    if bench := recorded.get("bench_seconds"):
        lines.append(f"Expect of the whole `bench` {sum(map(here, bench.values())) / 60:.0f} minutes.")
    return lines


def record(pace: dict, benchmarks: bool) -> None:
    """Time the demos, and the benchmarks if asked to; write recorded.json."""
    from common.stages import ROOT, stage_folders

    from .documents import write_json
    from .hardware import hardware

    def seconds(script: Path, *arguments: str) -> float:
        start = time.monotonic()
        subprocess.run([sys.executable, str(script), *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        print(f"{script.parent.name}/{script.name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        return time.monotonic() - start

    import torch

    facts = hardware(torch.device(pace["device"]))
    document = {name: facts[name] for name in ("cpu", "cpu_cores", "os", "python", "torch", "commit", "date")}
    document |= pace | {"demo_seconds": {one.name[:2]: seconds(one / "main.py", "--demo") for one in stage_folders()}}
    if benchmarks:
        folders = [*stage_folders(), ROOT / "common" / "bench"]
        with tempfile.TemporaryDirectory() as unused:
            document["bench_seconds"] = {one.name: seconds(one / "benchmark.py", "--out", unused) for one in folders}
    write_json(RECORDED, document)


if __name__ == "__main__":
    main(sys.argv[1:])
