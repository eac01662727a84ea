"""What stands beside a stage's benchmark.py as data: benchmark.toml, with its sizes and what texts say of its results.

[seconds]       what all runs of a set of sizes take together: on two CPU cores, "gpu" on an H200
[sizes.full]    lengths and counts to measure; each other set, such as [sizes.quick], changes some of them
[[claims]]      `says`: what the lesson or a title says in words. In every repeat each of `figures` lies between `least`
                and `most`, of a curve each value. A figure is a path into the document, such as
                "sides.02_kv_cache.seconds.3", or a ratio of two, "A / B". `large`: it is said of the committed result
                of a real model, or of a model of a real shape, not of the bundled one's.
"""

from collections.abc import Callable, Mapping
from functools import partial
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
    claims: dict[bool, dict[str, Callable[[dict], bool]]] = {False: {}, True: {}}
    for claim in found.get("claims", ()):
        claims[claim.get("large", False)][claim["says"]] = partial(holds, claim)
    known = {"file": file, "seconds": found["seconds"], "sizes": found["sizes"]}
    return known | {"claims": claims[False], "large_claims": claims[True]}


def holds(claim: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Return whether a document bears a claim out."""
    least, most = claim.get("least", -inf), claim.get("most", inf)
    return all(least <= value <= most for figure in claim["figures"] for value in ratios(document, figure))


def ratios(document: Mapping[str, Any], figure: str) -> list[float]:
    above, _, below = figure.partition(" / ")
    top = in_every_repeat(document, above)
    bottom = in_every_repeat(document, below) if below else [1] * len(top)
    return [one / other for one, other in zip(top, bottom, strict=True)]


def in_every_repeat(document: Mapping[str, Any], path: str) -> list[float]:
    """Return all values of the figure at a path; of a curve those at a place, or those at every place."""
    found, parts = document, path.split(".")
    while "values" not in found:
        found = found[parts.pop(0)]
    if parts:
        return [values[int(parts[0])] for values in found["values"]]
    return [value for values in found["values"] for value in (values if isinstance(values, list) else [values])]
