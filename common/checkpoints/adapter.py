"""Train an adapter for the bundled model: with it, the model answers as a pirate (common/lora.py).

    python -m common.checkpoints.adapter --out my/pirate      # some twenty minutes on two CPU cores
    python3 course.py serve 06 --lora pirate=my/pirate

The folder `pirate` beside this file has what it has made.

The weights of the model stay as they are: A and B are learned, which have a hundredth as many numbers. Texts are the
corpus's, in which each answer of a chat has another beginning and end.
"""

import re
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from common.errors import expect_writable
from common.loader import load_model
from common.lora import WEIGHTS, targeted, widths, write_adapter
from common.terminal import parser_of, run_to_end

from .corpus import document
from .recipes import Phase
from .tokenizer import FOLDER
from .train import THREADS, Training

RANK, ALPHA = 4, 8
TARGETS = ("q_proj", "v_proj", "o_proj", "down_proj")
ANSWER = re.compile(r"(<\|im_start\|>assistant\n)(.*?)(<\|im_end\|>)", re.DOTALL)


def pirates_document(index: int, seed: int | str, mix: str) -> str:
    """Return the document of that number, with a pirate's answers."""
    return ANSWER.sub(r"\1Ahoy! \2 Arr!\3", document(index, seed, mix))


class LowRank(nn.Module):
    """A weight plus scale * B A, of some of its outputs. B begins as zeros, so that the model begins as it was."""

    def __init__(self, rows: slice, ins: int, outs: int):
        super().__init__()
        self.rows, self.scale = rows, ALPHA / RANK
        self.down = nn.Parameter(torch.randn(RANK, ins) / ins**0.5)
        self.up = nn.Parameter(torch.zeros(outs, RANK))

    def forward(self, weight: Tensor) -> Tensor:
        change = torch.zeros_like(weight)
        change[self.rows] = self.scale * self.up @ self.down
        return weight + change


class AdapterTraining(Training):
    """Training of A and B alone."""

    write = staticmethod(pirates_document)

    def __init__(self, folder: Path, steps: int):
        self.out = folder
        super().__init__("target", 1, FOLDER / "target", folder, Phase(steps, mix="broad", peak_rate=0.004))

    def begin(self) -> None:
        super().begin()
        loaded = load_model(str(self.folder), device="cpu", dtype="float32", fused=False)
        self.model = loaded.model
        self.modules = {}
        for path, module, rows in targeted(self.config, TARGETS):
            self.modules[module] = LowRank(rows, *widths(self.config)[module.rpartition(".")[2]])
            parametrize.register_parametrization(self.model.get_submodule(path), "weight", self.modules[module])
        learned = [one for module in self.modules.values() for one in module.parameters()]
        self.optimizers = (torch.optim.AdamW(learned, weight_decay=0.0),)

    def export(self) -> None:
        """Write the adapter as PEFT does."""
        pairs = {name: (one.down.detach().bfloat16(), one.up.detach().bfloat16()) for name, one in self.modules.items()}
        write_adapter(self.out, pairs, ALPHA, base_model_name_or_path="common/checkpoints/target")
        self.snapshot_file.unlink()


def main() -> int:
    args = parser_of("python -m common.checkpoints.adapter", __doc__).parse_args()
    expect_writable(args.out / WEIGHTS)
    torch.set_num_threads(THREADS)
    return AdapterTraining(args.out, args.steps).run()


if __name__ == "__main__":
    run_to_end(main)
