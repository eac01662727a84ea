"""Record what doctor's expectations come from: `python -m common.bench.record_pace [bench]`, on a quiet machine.

It times every stage's demo, and with `bench` every benchmark, as their user starts them, and writes recorded.json.
With `check` it writes nothing, and prints what doctor expects of each demo beside what the demo takes.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common.loader.device import choose_device
from common.setup.doctor import RECORDED, ROOT, expected_seconds, measure_pace
from common.stages import stage_folders

from .documents import rounded, write_atomically
from .hardware import hardware

SCRIPTS = [folder / "benchmark.py" for folder in (*stage_folders(), ROOT / "common" / "bench")]


def main(arguments: list[str]) -> None:
    pace, line = measure_pace()
    if pace is None:
        sys.exit(f"stage 05 {line.text}")
    if "check" in arguments:
        recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
        for stage in stage_folders():
            expected = expected_seconds(pace, recorded, recorded["demo_seconds"])[stage.name[:2]]
            print(
                f"{stage.name}: expected {expected:.1f} s, took {seconds(stage / 'main.py', '--demo'):.1f} s",
                flush=True,
            )
        return
    facts = hardware(choose_device()[0])
    document = {name: facts[name] for name in ("device", "cpu", "cpu_cores", "os", "python", "torch", "commit", "date")}
    document |= pace
    document["demo_seconds"] = {stage.name[:2]: seconds(stage / "main.py", "--demo") for stage in stage_folders()}
    if "bench" in arguments:
        with tempfile.TemporaryDirectory() as unused:
            benchmarks = [path for path in SCRIPTS if path.exists()]
            document["bench_seconds"] = {path.parent.name: seconds(path, "--results", unused) for path in benchmarks}
    write_atomically(RECORDED, json.dumps(rounded(document), indent=1) + "\n")


def seconds(script: Path, *arguments: str) -> float:
    start = time.monotonic()
    output_of(str(script), *arguments)
    taken = time.monotonic() - start
    print(f"{script.parent.name}/{script.name}: {taken:.1f} s", file=sys.stderr, flush=True)
    return taken


def output_of(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
