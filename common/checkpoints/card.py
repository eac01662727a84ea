"""The tables of the model card, from what training and evaluation have written of both checkpoints."""

import json
from typing import Any

from common.terminal import markdown

from .tokenizer import FOLDER

NAMES = ("target", "draft")
TOPICS = {
    "known": ("facts", "terms", "arithmetic", "lists", "passages", "stories"),
    "unseen": ("reading", "copies", "strings", "unknown", "languages"),
}


def table(name: str) -> None:
    """Print a table of the model card, for cog: "models", "known" or "unseen"."""
    print(markdown(models() if name == "models" else scores(TOPICS[name])))


def read(name: str, kind: str) -> dict[str, Any]:
    return json.loads((FOLDER / name / f"{kind}.json").read_text())


def models() -> list[list[str]]:
    """Return what each model was trained on, and how well it then predicts."""
    training = [read(name, "training") for name in NAMES]
    tokens = [sum(phase["tokens"] for phase in each["phases"]) / 1e6 for each in training]
    losses = [each["phases"][-1]["held_out_loss"] for each in training]
    return [
        ["", *NAMES],
        ["parameters", *(f"{each['parameters']:,}" for each in training)],
        ["trained on", *(f"{millions:.1f} million tokens" for millions in tokens)],
        ["held-out loss", *(f"{loss:.4f} nats per token" for loss in losses)],
    ]


def scores(topics: tuple[str, ...]) -> list[list[str]]:
    """Return the percentage of each topic's questions that each model answers word for word."""
    found = {name: read(name, "evaluation") for name in NAMES}
    return [["", *topics], *([name, *(f"{100 * found[name][topic]:.0f}%" for topic in topics)] for name in NAMES)]
