"""What every benchmark.py ends with."""

from collections.abc import Sequence

from common.terminal import run_to_end

from .harness import Benchmark
from .learner import beside_reference, is_learners


def run_benchmark(benchmark: Benchmark, arguments: Sequence[str] | None = None) -> None:
    """Run the command line of a benchmark. Exit with 1 and a sentence if a side fails, with 130 after Ctrl-C."""
    from .commands import main  # with all that draws, which a side's process does not need

    if is_learners(benchmark):
        benchmark = beside_reference(benchmark)
    run_to_end(lambda: main(f"python -m {benchmark.module}", benchmark.description, [benchmark], arguments))
