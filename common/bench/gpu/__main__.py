"""Every test and measurement of the course that needs a GPU, in one command.

    python3 -m common.bench.gpu --out DIR                       # all parts, under nine minutes on an H200
    python3 -m common.bench.gpu --out DIR --only kernels,budget
    python3 -m common.bench.gpu --out DIR --sizes tiny          # runs everything end to end, on a CPU

The parts are benchmarks as those of the stages, of which three take part with sizes for a GPU; all sides of one run in
one process, so that a large model is made once. The command writes DIR/<gpu>-<part>.json, with a plot beside it where
the part has one, and DIR/<gpu>.json with what all parts found, which is also the last line on stdout; it
prints the tables of the parts, writes them to DIR/tables.txt, and packs the folder into DIR.zip. A part that is
complete in DIR, with the same sizes and from the same commit, is not run again. A part that fails, or takes twice as
long as expected, keeps the sides that it has measured, and the others go on; the same command takes it up again.

A GPU is often lent for minutes, on a machine without a network: nothing is needed but torch, transformers, triton,
numba, platformdirs, matplotlib, pytest and hypothesis. The exit status is 0 if all parts are complete, 1 if one failed
or found something wrong, 130 after Ctrl-C.
"""

import argparse
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch

from common.bench.documents import read_json
from common.bench.harness import Benchmark
from common.bench.run import main
from common.terminal import note, run_to_end

ALL_SECONDS = 540.0  # on an H200 (4.8 TB/s, some 800 TFLOP/s in bfloat16); each process needs about 12 s to start
MODULES = (
    *(f"common.bench.gpu.{name}" for name in ("tests", "kernels", "budget")),
    *(f"{stage}.benchmark" for stage in ("04_continuous_batching", "06_prefix_cache", "07_speculative")),
)


def parts() -> list[Benchmark]:
    return [import_module(module).BENCHMARK for module in MODULES]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    benchmarks = parts()
    listed = "\n".join(
        f"  {part.name:<22} {part.seconds['gpu']:>4.0f} s   {part.description.splitlines()[0]}" for part in benchmarks
    )
    description = f"{__doc__}\nParts, and what each takes on an H200:\n{listed}"
    sizes = "gpu" if torch.cuda.is_available() else "tiny"
    if sizes == "tiny":
        note("No CUDA device: all runs with --sizes tiny, which measures nothing worth knowing.")
    defaults = {"sizes": sizes, "together": True, "minutes": ALL_SECONDS / 60}
    status = main("python3 -m common.bench.gpu", description, benchmarks, arguments, **defaults)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--out", "--results", type=Path)
    out = parser.parse_known_args(arguments)[0].out
    if out and out.is_dir():
        text = tables(benchmarks, out)
        (out / "tables.txt").write_text(text, encoding="utf-8")
        note(text)
        shutil.make_archive(str(out), "zip", out.parent, out.name)
    return status


def tables(benchmarks: Sequence[Benchmark], folder: Path) -> str:
    """Return the tables of all results in the folder that these benchmarks have for a GPU, columns aligned."""
    reports = {each.name: each.report for each in benchmarks if each.module.startswith("common.") and each.report}
    text = ""
    for path in sorted(folder.glob("*.json")):
        document = read_json(path) or {}
        report = reports.get(document.get("benchmark"), lambda document: {})
        for name, rows in report(document).items():
            widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
            lines = ("  ".join(f"{cell!s:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
            text += "\n".join([f"\n{name}", *lines, ""])
    return text


if __name__ == "__main__":
    run_to_end(run)
