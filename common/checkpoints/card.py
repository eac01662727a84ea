"""The tables of the model card, from what training and evaluation have written of both checkpoints."""

import json
from typing import Any

from common.bench.tables import markdown
from common.loader.config import read_config

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
