"""Write the tables of the texts: `python -m common.bench.tables`; with --check only say which texts are out of date.

A text names a table between the markers of Ned Batchelder's cog, and has it up to the end marker:

    <!-- [[[cog table("05_paged_attention.benchmark", "memory") ]]] -->
    <!-- [[[end]]] -->

`report` of that module makes it, from the committed results of the machine that the lessons measure on, or of another
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

from .documents import read_json
from .plots import short

MACHINE = "cpu-amd-epyc-2-cores"  # Most committed figures come from it.
SHAPES = "cpu-intel-xeon-2-cores"  # Both models did the same work on it.
SAME_WORK = {"the bundled model": f"{SHAPES}-large", "SmolLM2-135M": f"{SHAPES}.smollm2-bfloat16"}
LARGE = (SAME_WORK["SmolLM2-135M"], f"{MACHINE}.qwen3-0.6b-dummy-bfloat16")  # a real model, and only the shape of one
Rows = Sequence[Sequence[Any]]  # the header first


def by_size(
    name: str,
    sizes: Sequence[int],
    figures: Mapping[str, Mapping],
    *,
    unit: str = "",
    scale: float = 1,
    only: Sequence[int] = (),
) -> Rows:
    """Return a row for each size, or for each in `only`, and a column for the medians of each figure times `scale`.

    name: what a size is. figures: by the header of the column. unit: of all of them. Where sizes of `only` were not
    measured, as at another model's shape, all others are shown.
    """
    places = [sizes.index(size) for size in (only if set(only) <= set(sizes) else ()) or sizes]
    rows = [[f"{sizes[at]:,}", *(short(scale * figure["median"][at]) for figure in figures.values())] for at in places]
    return [[name, *(f"{column}, {unit}" if unit else column for column in figures)], *rows]


def committed(module: str, name: str) -> dict[str, Any]:
    """Return the document of a module's benchmark, `<its folder>/results/<name>.json`; {} where there is none."""
    folder = ROOT.joinpath(*module.split(".")[:-1])
    return read_json(folder / "results" / f"{name}.json") or {}


def table(module: str, name: str, machine: str = MACHINE) -> None:
    """Print a table of a module's `report` into the text that cog is at."""
    if document := committed(module, machine):
        report: Mapping[str, Rows] = import_module(module).BENCHMARK.report(document)
        sys.stdout.write(markdown(report[name]) + "\n")


def shapes(module: str) -> None:
    """Print the table "shape" of the bundled model and of SmolLM2, which did the same work on one machine."""
    report, rows = import_module(module).BENCHMARK.report, []
    for model, name in SAME_WORK.items():
        header, row = report(committed(module, name))["shape"]
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
