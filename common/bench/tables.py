"""Write the tables of the texts: `python -m common.bench.tables`; with --check only say which texts are out of date.

A text names a table between the markers of Ned Batchelder's cog, and has it up to the end marker:

    <!-- [[[cog table("05_paged_attention.benchmark", "memory") ]]] -->
    <!-- [[[end]]] -->

That module's benchmark makes it, from the committed results of the machine that the lessons measure on, or of another
`machine`. `shapes("05_paged_attention.benchmark")` has a row for the bundled model and one for SmolLM2, which did the
same work on one machine. What has not been measured is left out.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from common.stages import ROOT
from common.terminal import markdown

from .description import table_of
from .documents import read_json
from .harness import Benchmark

MACHINE = "cpu-amd-epyc-2-cores"  # Most committed figures come from it.
SHAPES = "cpu-intel-xeon-2-cores"  # Both models did the same work on it.
SAME_WORK = {"the bundled model": f"{SHAPES}-large", "SmolLM2-135M": f"{SHAPES}.smollm2-bfloat16"}
LARGE = (SAME_WORK["SmolLM2-135M"], f"{MACHINE}.qwen3-0.6b-dummy-bfloat16")  # a real model, and only the shape of one
Rows = Sequence[Sequence[Any]]  # the header first


def reach(ratio: Mapping[str, float]) -> str:
    """Return the median of a ratio, and from where to where its repeats reach."""
    return f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def committed(module: str, name: str) -> dict[str, Any]:
    """Return the document of a module's benchmark, `<its folder>/results/<name>.json`; {} where there is none."""
    folder = ROOT.joinpath(*module.split(".")[:-1])
    return read_json(folder / "results" / f"{name}.json") or {}


def table(module: str, name: str, machine: str = MACHINE) -> None:
    """Print a table of a module's benchmark into the text that cog is at."""
    if document := committed(module, machine):
        sys.stdout.write(markdown(rows_of(import_module(module).BENCHMARK, name, document)) + "\n")


def rows_of(benchmark: Benchmark, name: str, document: Mapping[str, Any]) -> Rows:
    """Return a table that benchmark.toml describes, or one that `report` makes."""
    if described := benchmark.tables.get(name):
        return table_of(document=document, **described)
    return benchmark.report(document)[name]


def shapes(module: str) -> None:
    """Print the table "shape" of the bundled model and of SmolLM2, which did the same work on one machine."""
    benchmark, rows = import_module(module).BENCHMARK, []
    for model, name in SAME_WORK.items():
        header, row = rows_of(benchmark, "shape", committed(module, name))
        rows = [*(rows or [["", *header]]), [model, *row]]
    sys.stdout.write(markdown(rows) + "\n")


def texts() -> list[Path]:
    """Return the pages with tables or other parts that cog fills, but no learner's own."""
    folders = [ROOT, *ROOT.glob("0*_*"), *ROOT.glob("common/**/"), *ROOT.glob("workshop/**/"), *ROOT.glob("beyond/**/")]
    paths = sorted({path for folder in folders for kind in ("*.md", "*.html") for path in folder.glob(kind)})
    return [path for path in paths if "[[[cog" in path.read_text(encoding="utf-8")]


def main(arguments: Sequence[str] = ()) -> int:
    """Run cog on every text; return its exit status."""
    from cogapp import Cog  # A machine that only measures need not have it.

    prologue = "from common.bench.tables import shapes, table"
    command = ["cog", "-P", "--verbosity=1", "-p", prologue, *(arguments or ["-r"])]  # -r would override --check
    return max((Cog().main([*command, str(text)]) for text in texts()), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
