"""Measures the whole course on this machine, and writes one results file about it.

    python3 course.py bench --quick          every stage's headline, in under six minutes
    python3 course.py bench                  all figures and plots: about an hour and a half
    python3 course.py bench --only 02,05 --again
    python3 course.py bench --quick --model smollm2 --dtype bfloat16

The last one runs a real model with loads of its own, so that it takes about eight minutes, without --quick most of an
hour. Leave --dtype out where the processor has no bfloat16 (AVX512-BF16, AMX). Results have the model in their name.

Every stage is compared with the one before it; the last entry, `bench`, puts all of them under one load. The results
file is results/<hardware>.json, with --quick results/<hardware>-quick.json; summary.py says what is in it. What was
measured is kept after Ctrl-C: the same command goes on from there. A ratio that the machine's own drift could have made
is marked with "?".
"""

from importlib import import_module

from common.stages import stage_folders
from common.terminal import run_to_end

from .harness import Benchmark
from .run import main


def course_benchmarks() -> list[Benchmark]:
    """Return those of all stages, and the one of all stages under one load."""
    modules = [f"{folder.name}.benchmark" for folder in stage_folders()]
    return [import_module(module).BENCHMARK for module in [*modules, "common.bench.benchmark"]]


if __name__ == "__main__":
    run_to_end(lambda: main("course.py bench", __doc__, course_benchmarks()))
