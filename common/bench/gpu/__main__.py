"""Every measurement of the course that needs a GPU, in one command.

    python3 -m common.bench.gpu --out DIR                       # all parts, under nine minutes on an H200
    python3 -m common.bench.gpu --out DIR --only throughput,decode
    python3 -m common.bench.gpu --out DIR --sizes tiny          # runs everything end to end, on a CPU

The parts are benchmarks as those of the stages, of which three take part with sizes for a GPU; all sides of one run in
one process, so that a large model is made once. The command writes DIR/<gpu>-<part>.json with a plot beside it, and
DIR/<gpu>.json with what all parts found in short, which is also the last line on stdout. A part that is complete in
DIR, with the same sizes and from the same commit, is not run again. A part that fails, or takes twice as long as
expected, keeps the sides that it has measured, and the others go on; the same command takes it up again.

A GPU is often lent for minutes, on a machine without a network: nothing is needed but torch, transformers, triton,
matplotlib and pytest. The exit status is 0 if all parts are complete, 1 if one failed or found something wrong, 130
after Ctrl-C.
"""

from collections.abc import Sequence
from importlib import import_module

import torch

from common.bench.harness import Benchmark
from common.bench.run import main
from common.terminal import note, run_to_end

ALL_SECONDS = 540.0  # on an H200 (4.8 TB/s, some 800 TFLOP/s in bfloat16); each process needs about 12 s to start
MODULES = (
    "common.bench.gpu.kernels",
    "common.bench.gpu.contract",
    "common.bench.gpu.throughput",
    "common.bench.gpu.decode",
    "04_continuous_batching.benchmark",
    "06_prefix_cache.benchmark",
    "07_speculative.benchmark",
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
        note("No CUDA device: everything is run with --sizes tiny, which measures nothing worth knowing.")
    minutes = ALL_SECONDS / 60
    return main(
        "python3 -m common.bench.gpu", description, benchmarks, arguments, sizes=sizes, together=True, minutes=minutes
    )


if __name__ == "__main__":
    run_to_end(run)
