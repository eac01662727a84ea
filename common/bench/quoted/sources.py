"""Read committed results: the medians of a benchmark, and where repeats matter the least and the most."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from common.learn.stage_diff import code_lines
from common.loader.config import read_config
from common.model import ModelConfig
from common.stages import ROOT

MACHINE = "cpu-amd-epyc-2-cores"  # the one that all committed figures come from
STATED = "on two CPU cores, in float32, medians of three repeats"


class Results:
    """The document of a benchmark in `folder`.

    sizes: as measured. sides[name], figures: medians; least, most: figures of the extreme repeats.
    """

    def __init__(self, folder: str):
        document = read(f"{folder}/results/{MACHINE}.json")
        self.sizes = SimpleNamespace(**document["sizes"])
        self.sides = {name: each(figures, "median") for name, figures in document["sides"].items()}
        self.figures, self.least, self.most = (each(document["figures"], key) for key in ("median", "min", "max"))
        facts = document["hardware"]["cpu_cores"], document["settings"]["dtype"], len(document["order"])
        self.as_stated = facts == (2, "float32", 3)  # which is STATED


def read(path: str) -> Any:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def config(name: str) -> ModelConfig:
    return read_config(ROOT / "common" / "checkpoints" / name)


def lines(path: str) -> int:
    return (ROOT / path).read_text(encoding="utf-8").count("\n")


def code(path: str) -> int:
    """Return the lines of a file that are neither blank nor part of a docstring."""
    return len(code_lines((ROOT / path).read_text(encoding="utf-8")))


def each(figures: Mapping[str, Mapping[str, Any]], key: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: spread[key] for name, spread in figures.items() if key in spread})


def by(sizes: Sequence[float], values: Sequence[float]) -> dict[float, float]:
    """Return the values of a list by the size that each was measured with."""
    return dict(zip(sizes, values, strict=True))
