"""What stands beside a benchmark.py as data: benchmark.toml, with its sizes and what texts say of its results.

[seconds]       what all runs of a set of sizes take together: on two CPU cores, "gpu" on an H200
[sizes.full]    lengths and counts to measure; each other set, such as [sizes.quick], changes some of them
[[claims]]      `says`: what the lesson or a title says in words. In every repeat each of `figures` lies between `least`
                and `most`, of a curve each value. A figure is a path into the document, such as
                "sides.02_kv_cache.seconds.3", or a ratio of two, "A / B". `of`: the committed results of which it is
                said, by name; without it that of the bundled model on the machine that the lessons measure on.
"""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from common.stages import ROOT
from common.toml import read_toml


def described(file: str) -> dict[str, Any]:
    """Return what `Benchmark` takes for the benchmark in this file, from the TOML file of the same name.

    A learner's copy of a stage has only Python files: there it is the stage's.
    """
    beside = Path(file).with_suffix(".toml")
    path = beside if beside.exists() else ROOT / beside.parent.name / beside.name
    found = read_toml(path)
    claims = found.get("claims", ())
    return {"file": file, "seconds": found["seconds"], "sizes": found["sizes"], "claims": claims}


def holds(claim: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Return whether a document bears a claim out."""
    least, most = claim.get("least", -inf), claim.get("most", inf)
    for repeat in range(len(document["order"])):
        for figure in claim["figures"]:
            pairs = zip(*operands(document, figure, repeat), strict=True)
            if not all(least <= above / below <= most for above, below in pairs):
                return False
    return True


def operands(document: Mapping[str, Any], figure: str, repeat: int | None = None) -> tuple[list, list]:
    """Return the values of A and of B in "A / B", all values of a curve; without B, a 1 for each value of A."""
    above, _, below = figure.partition(" / ")
    top = listed(look_up(document, above, repeat))
    return top, listed(look_up(document, below, repeat)) if below else [1] * len(top)


def look_up(found: Any, path: str, repeat: int | None = None) -> Any:
    """Return what stands at a path: of a figure the value of a repeat, or the median."""
    for part in path.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]
        if isinstance(found, dict) and "values" in found:
            found = found["median"] if repeat is None else found["values"][repeat]
    return found


def listed(value: Any) -> list:
    return value if isinstance(value, list) else [value]
