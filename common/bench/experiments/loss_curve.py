"""Draw loss.png, the loss curves of both checkpoints, from their training.json.

python -m common.bench.experiments.loss_curve
"""

import json
import math

import matplotlib
from matplotlib.figure import Figure

from common.checkpoints.tokenizer import FOLDER

from ..plots import COLORS, DPI, STYLE, save


def tokens_seen(recipe: dict, step: int) -> float:
    """Return the millions of tokens in the first `step` steps; a step has `tokens_per_step`, or one longer row."""
    seen = begin = 0
    for until, length in recipe["row_lengths"]:
        end = min(step, math.ceil(until * recipe["steps"]))
        seen += max(0, end - begin) * length * max(1, recipe["tokens_per_step"] // length)
        begin = max(begin, end)
    return seen / 1e6


def main() -> None:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.6), dpi=DPI, layout="constrained")
        panel = figure.subplots()
        # The draft's line ends amid the target's: its text stands above both.
        for name, color, above in (("draft", COLORS["03"], 60), ("target", COLORS["02"], 0)):
            record = json.loads((FOLDER / name / "training.json").read_text())
            seen = 0.0  # millions of tokens in the phases before
            for phase in record["phases"]:
                recipe, history = phase["recipe"], phase["history"]
                held_out = [entry for entry in history if "held_out_loss" in entry]
                for entries, key, style in (
                    (history, "train_loss", {}),
                    (held_out, "held_out_loss", {"linestyle": "", "marker": "o", "markerfacecolor": "white"}),
                ):
                    tokens = [seen + tokens_seen(recipe, entry["step"]) for entry in entries]
                    panel.plot(tokens, [entry[key] for entry in entries], color=color, **style)
                seen += phase["tokens"] / 1e6
            text = f"{name}, {record['parameters'] / 1e6:.1f} M parameters\nheld out {phase['held_out_loss']:.3f}"
            panel.annotate(
                text,
                (seen, phase["held_out_loss"]),
                (8, above),
                textcoords="offset points",
                va="center",
                color=color,
                fontsize=10,
            )
        panel.set_ylim(0, 3)
        panel.set_xlabel("million tokens seen   (lines: training, circles: held-out documents)")
        panel.set_ylabel("loss, nats per token")
        figure.suptitle("Training of the bundled checkpoints", x=0.012, ha="left", fontsize=15, fontweight="bold")
        save(figure, FOLDER / "loss.png")


if __name__ == "__main__":
    main()
