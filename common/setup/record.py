"""Record what doctor's expectations come from: `python -m common.setup.record [bench]`, on a quiet machine.

It times every stage's demo, and with `bench` every benchmark, as their user starts them, and writes recorded.json.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common.bench.documents import rounded, write_atomically
from common.bench.hardware import hardware
from common.loader.device import choose_device
from common.stages import stage_folders

from .doctor import RECORDED, ROOT

SCRIPTS = [folder / "benchmark.py" for folder in (*stage_folders(), ROOT / "common" / "bench")]


def main(arguments: list[str]) -> None:
    facts = hardware(choose_device()[0])
    document = {name: facts[name] for name in ("device", "cpu", "cpu_cores", "os", "python", "torch", "commit", "date")}
    document |= json.loads(output_of("-m", "common.setup.pace").splitlines()[-1])
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
