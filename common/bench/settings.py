"""Which model a benchmark runs, where, and in what type: the options that it hands on to every process it starts."""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from common.loader import Loaded, find_checkpoint, load_model
from common.loader.config import read_config
from common.loader.device import DTYPES, choose_device
from common.model import ModelConfig
from common.process import freeze_loaded_objects


@dataclass(frozen=True)
class Settings:
    """Arguments of `common.loader.load_model`, as the command line gives them."""

    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"

    def load(self) -> Loaded:
        loaded = load_model(self.model, device=self.device, dtype=self.dtype, load_format=self.load_format)
        freeze_loaded_objects()
        return loaded

    def folder(self) -> Path:
        return find_checkpoint(self.model, with_weights=self.load_format == "auto")

    def config(self) -> ModelConfig:
        return read_config(self.folder())

    def place(self) -> tuple[torch.device, torch.dtype]:
        """The device and the type that "auto" stands for on this machine."""
        device, dtype, _ = choose_device(self.device, self.dtype)
        return device, dtype

    def arguments(self) -> list[str]:
        """The same settings as command line arguments, for a benchmark's child and for a stage's main.py."""
        options = {f"--{name.replace('_', '-')}": value for name, value in asdict(self).items() if value is not None}
        return [word for option in options.items() for word in option]

    @classmethod
    def from_arguments(cls, args: argparse.Namespace) -> "Settings":
        return cls(args.model, args.device, args.dtype, args.load_format)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--model", metavar="NAME", help="as for main.py (default: the bundled checkpoint)")
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda (default: auto)")
        parser.add_argument("--dtype", default="auto", choices=["auto", *DTYPES])
        parser.add_argument("--load-format", default="auto", choices=["auto", "dummy"], help="dummy: random weights")
