"""Every test and measurement of the course that needs a GPU, in one command.

    python3 -m common.bench.gpu --out DIR                       # all parts, ten minutes on an H200
    python3 -m common.bench.gpu --out DIR --only smoke,budget
    python3 -m common.bench.gpu --out DIR --sizes tiny          # runs everything end to end, on a CPU

The parts are benchmarks as those of the stages, of which three take part with sizes for a GPU; all sides of one run in
one process, so that a large model is made once. The command writes DIR/tables.txt, the tables of all parts, and
DIR/results.zip, in which are <gpu>-<part>.json, with a plot beside it where the part has one, and <gpu>.json with what
all parts found, which is also the last line on stdout. Both are written after each part. A part that is complete in
DIR, with the same sizes and from the same commit, is not run again. A part that fails, or takes twice as long as
expected, keeps the sides that it has measured, and the others go on; the same command takes it up again.

A GPU is often lent for minutes, on a machine without a network: nothing is needed but torch, transformers, triton,
numba, matplotlib, pytest and hypothesis; with pytest-xdist tests take less time. Where only the files are, without
.git, the variable COURSE_COMMIT names the commit for the results. The exit status is 0 if all parts are complete, 1 if
one failed or found something wrong, 130 after Ctrl-C.
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from common.bench.documents import read_json, write_atomically
from common.bench.harness import Benchmark
from common.bench.run import main
from common.bench.tables import rows_of
from common.errors import expect_writable
from common.terminal import markdown, note, run_to_end

ALL_SECONDS = 590.0  # on an H200 (4.8 TB/s, some 800 TFLOP/s in bfloat16); each process needs about 12 s to start
MODULES = (
    *(f"common.bench.gpu.{name}" for name in ("smoke", "nano", "tests", "budget")),
    *(f"{folder}.benchmark" for folder in ("04_continuous_batching", "06_prefix_cache", "07_speculative")),
    "beyond.host_tier.benchmark",
    "beyond.lora.benchmark",
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    benchmarks: list[Benchmark] = [import_module(module).BENCHMARK for module in MODULES]
    listed = "\n".join(
        f"  {part.name:<22} {part.seconds['gpu']:>4.0f} s   {part.description.splitlines()[0]}" for part in benchmarks
    )
    description = f"{__doc__}\nParts, and what each takes on an H200:\n{listed}"
    sizes = "gpu" if torch.cuda.is_available() else "tiny"
    if sizes == "tiny":
        note("No CUDA device: all runs with --sizes tiny, which measures nothing worth knowing.")
    defaults = {"sizes": sizes, "together": True, "minutes": ALL_SECONDS / 60}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--out", "--results", type=Path)
    known, others = parser.parse_known_args(arguments)
    start = partial(main, "python3 -m common.bench.gpu", description, benchmarks, **defaults)
    if not known.out:
        return start(others)
    packed = known.out / "results.zip"
    expect_writable(packed)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "results")
        out.mkdir()
        if packed.exists():
            shutil.unpack_archive(packed, out)
        after = partial(pack, benchmarks, out, known.out)
        status = start([*others, "--out", str(out)], after=after)
        note(after())
    return status


def pack(benchmarks: Sequence[Benchmark], out: Path, into: Path) -> str:
    """Write two files in place of many, all that is in `out` and the tables of it; return the tables."""
    text = tables(benchmarks, out)
    write_atomically(into / "tables.txt", text)
    with tempfile.TemporaryDirectory(dir=into) as folder:
        Path(shutil.make_archive(str(Path(folder, "results")), "zip", out)).replace(into / "results.zip")
    return text


def tables(benchmarks: Sequence[Benchmark], folder: Path) -> str:
    """Return the tables of all documents in the folder that these benchmarks have for a GPU."""
    parts, text = {each.name: each for each in benchmarks if not each.module.startswith("0")}, ""
    for document in map(read_json, sorted(folder.glob("*.json"))):
        if (part := parts.get(document.get("benchmark"))) and document["sides"]:
            found = {name: rows_of(part, name, document) for name in part.tables} | part.report(document)
            text += "".join(f"\n{name}\n\n{markdown(rows)}\n" for name, rows in found.items())
    return text


if __name__ == "__main__":
    run_to_end(run)
