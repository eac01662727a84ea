"""Write the tables of the texts: `python -m common.bench.tables`; with --check only say which texts are out of date.

A text names a table between the markers of Ned Batchelder's cog, and has it up to the end marker:

    <!-- [[[cog table("05_paged_attention.benchmark", "memory") ]]] -->
    <!-- [[[end]]] -->

`report` of that module makes it, from the committed results of the machine that the lessons measure on; with
large=True from those of a model of a real shape. `shapes("05_paged_attention.benchmark")` sets both side by side: a row
for each model. What has not been measured is left out.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from common.model import ModelConfig
from common.stages import ROOT
from common.terminal import markdown

from .cost_model import parameters
from .documents import read_json
from .plots import short

MACHINE = "cpu-amd-epyc-2-cores"  # which all committed figures come from
LARGE = f"{MACHINE}.qwen3-0.6b-dummy-bfloat16"  # the same machine, with a real model's shape
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


def committed(module: str, name: str = MACHINE) -> dict[str, Any]:
    """Return the document of a module's benchmark, `<its folder>/results/<name>.json`; {} where there is none."""
    folder = ROOT.joinpath(*module.split(".")[:-1])
    return read_json(folder / "results" / f"{name}.json") or {}


def table(module: str, name: str, large: bool = False, dtype: str = "", machine: str = MACHINE) -> None:
    """Print a table of a module's `report` into the text that cog is at. dtype: of a run with --dtype."""
    if document := committed(module, ".".join(filter(None, (LARGE if large else machine, dtype)))):
        report: Mapping[str, Rows] = import_module(module).BENCHMARK.report(document)
        sys.stdout.write(markdown(report[name]) + "\n")


def shapes(module: str) -> None:
    """Print what the bundled model and one of a real shape show: the table "shape" of each, or else its headline."""
    report = import_module(module).BENCHMARK.report
    rows: list[Sequence] = []
    bundled = parameters(ModelConfig(**committed(module)["model"]))
    for document in filter(None, (committed(module), committed(module, LARGE))):
        times = parameters(ModelConfig(**document["model"])) / bundled
        model = "the bundled model" if times == 1 else f"a model {round(times, -1):.0f} times as large"
        if "ratio" not in document["headline"]:  # a side could not be had
            continue
        header, row = report(document).get("shape") or in_short(document["headline"])
        rows += [[model, *row]] if rows else [["", *header], [model, *row]]
    sys.stdout.write(markdown(rows) + "\n")


def in_short(headline: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return a headline as a table of one row."""
    values = [short(each["median"]) for each in headline["sides"].values()]
    sides = [f"stage {side[:2]}" if side[:2].isdecimal() else side for side in headline["sides"]]
    header = ["load", *(f"{side}, {headline['unit']}" for side in sides), "times"]
    return header, [headline["title"], *values, f"{headline['ratio']['median']:.1f}"]


def texts() -> list[Path]:
    """Return the texts with tables: all that are read in a page of Markdown, but no learner's own."""
    folders = [ROOT, *ROOT.glob("0*_*"), *ROOT.glob("common/**/"), *ROOT.glob("workshop/**/"), *ROOT.glob("beyond/**/")]
    paths = sorted({path for folder in folders for path in folder.glob("*.md")})
    return [path for path in paths if "[[[cog" in path.read_text(encoding="utf-8")]


def main(arguments: Sequence[str] = ()) -> int:
    """Run cog on every text; return its exit status."""
    from cogapp import Cog  # which a machine that only measures need not have

    prologue = "from common.bench.tables import shapes, table"
    command = ["cog", "-P", "--verbosity=1", "-p", prologue, *(arguments or ["-r"])]  # -r would override --check
    return max((Cog().main([*command, str(text)]) for text in texts()), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
