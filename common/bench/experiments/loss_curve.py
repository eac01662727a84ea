"""The picture and the tables of the model card, from what training and evaluation have written of both checkpoints.

python -m common.bench.experiments.loss_curve     # draws loss.png; the tables: python -m common.bench.tables
"""

import json
import math
from typing import Any

from common.checkpoints.tokenizer import FOLDER
from common.loader.config import read_config

from .. import plots
from ..tables import markdown

NAMES = ("target", "draft")
TOPICS = {
    "known": ("facts", "terms", "arithmetic", "lists", "passages", "stories"),
    "unseen": ("reading", "copies", "strings", "unknown", "languages"),
}


def read(name: str, kind: str) -> dict[str, Any]:
    return json.loads((FOLDER / name / f"{kind}.json").read_text())


def table(name: str) -> None:
    """Print a table of the model card, for cog: "models", "known" or "unseen"."""
    print(markdown(models() if name == "models" else scores(TOPICS[name])))


def models() -> list[list[str]]:
    """Return what each model is, and what it was trained on."""
    columns = []
    for name in NAMES:
        config, training = read_config(FOLDER / name), read(name, "training")
        megabytes = (FOLDER / name / "model.safetensors").stat().st_size / 1e6
        columns.append(
            {
                "": name,
                "architecture": f"Llama, {config.num_layers} layers, hidden {config.hidden_size}, "
                f"MLP {config.intermediate_size}",
                "heads": f"{config.num_heads} query, {config.num_kv_heads} K/V, dimension {config.head_dim}",
                "parameters (embeddings tied)": f"{training['parameters']:,}",
                "context": f"{config.context_length:,} tokens",
                "weights": f"bfloat16 safetensors, {megabytes:.1f} MB",
                "trained on": f"{sum(phase['tokens'] for phase in training['phases']) / 1e6:.1f} million tokens",
                "held-out loss": f"{training['phases'][-1]['held_out_loss']:.4f} nats per token",
            }
        )
    return [[row, *(column[row] for column in columns)] for row in columns[0]]


def scores(topics: tuple[str, ...]) -> list[list[str]]:
    """Return the percentage of each topic's questions that each model answers word for word."""
    found = {name: read(name, "evaluation") for name in NAMES}
    return [["", *topics], *([name, *(f"{100 * found[name][topic]:.0f}%" for topic in topics)] for name in NAMES)]


def tokens_seen(recipe: dict, step: int) -> float:
    """Return the millions of tokens in the first `step` steps; a step has `tokens_per_step`, or one longer row."""
    seen = begin = 0
    for until, length in recipe["row_lengths"]:
        end = min(step, math.ceil(until * recipe["steps"]))
        seen += max(0, end - begin) * length * max(1, recipe["tokens_per_step"] // length)
        begin = max(begin, end)
    return seen / 1e6


def draw() -> None:
    """Draw loss.png: the training loss of both models, and the held-out loss of the weights that are bundled."""
    training = {name: read(name, "training") for name in NAMES}
    target, draft = (training[name]["phases"][-1]["held_out_loss"] for name in NAMES)
    message = f"On unseen documents the target ends at {target:.2f} nats per token, the draft at {draft:.2f}"
    footer = (
        "Line: loss of the training documents, by all tokens so far. It jumps where a new phase brings other "
        "documents, and where rows become long.\nDashed: loss of held-out documents at the end."
    )
    with plots.page(FOLDER / "loss.png", footer, message, columns=2) as panels:
        for panel, name, side in zip(panels, NAMES, ("02", "03"), strict=True):
            seen, tokens, losses = 0.0, [], []  # millions of tokens in the phases before
            for phase in training[name]["phases"]:
                tokens += [seen + tokens_seen(phase["recipe"], entry["step"]) for entry in phase["history"]]
                losses += [entry["train_loss"] for entry in phase["history"]]
                seen += phase["tokens"] / 1e6
            panel.plot(tokens, losses, color=plots.color(side), label="_training")
            held_out = phase["held_out_loss"]
            plots.predicted(panel, [0, seen], {"median": [held_out] * 2}, f"{held_out:.2f}")
            title = f"{name}, {training[name]['parameters'] / 1e6:.1f} M parameters"
            plots.axes(panel, "million tokens", "loss, nats per token", title)
            panel.set_ylim(top=3)
            panel.set_xlim(0, seen)


if __name__ == "__main__":
    draw()
