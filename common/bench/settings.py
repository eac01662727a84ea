"""Which model a benchmark runs, where, and in what type: the options that it hands on to every process it starts."""

import inspect
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from common.acceleration.accelerate import make_engine
from common.engine import BaseEngine
from common.loader import Loaded, find_checkpoint, load_model
from common.loader.config import read_config
from common.loader.device import choose_device
from common.model import ModelConfig
from common.process import freeze_loaded_objects
from common.stages import load_engine

from .cost_model import parameters

LARGE = 10**8  # parameters: from here on a step on a CPU takes a tenth of a second or more
held: dict["Settings", Loaded] = {}  # the model loaded last: on a GPU several sides share a process


@dataclass(frozen=True)
class Settings:
    """Arguments of `common.loader.load_model`, as the command line gives them."""

    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"

    def of_sizes(self, sizes: dict[str, Any]) -> "Settings":
        """Return those with the model that the sizes are for, of random weights, unless the command line names one."""
        named = sizes.get("model") if self.model is None else None
        return replace(self, model=named, load_format="dummy") if named else self

    def load(self, context_length: int | None = None) -> Loaded:
        """Return the model; with a shorter context if stages with a slot for a whole one are to hold many requests."""
        if self not in held:
            held.clear()
            options = {"device": self.device, "dtype": self.dtype, "load_format": self.load_format}
            held[self] = load_model(self.model, **options, quantization="none")  # weights are in `dtype`
            freeze_loaded_objects()
        loaded = held[self]
        if context_length is None or context_length >= loaded.config.context_length:
            return loaded
        return replace(loaded, config=replace(loaded.config, context_length=context_length))

    def without_weights(self) -> Loaded:
        """Return tokenizer and config, for a process that runs another library's model, or whose workers load it."""
        return load_model(self.model, device=self.device, dtype=self.dtype, load_format="none")

    def folder(self) -> Path:
        return find_checkpoint(self.model, with_weights=self.load_format == "auto")

    def config(self) -> ModelConfig:
        return read_config(self.folder())

    def size_set(self, size_set: str) -> str:
        """Return the set of sizes for this model: "large" for "full", and "large-quick" for "quick", if it is large.

        Raise InvalidInput or FileNotFoundError if the model or the device cannot be had.
        """
        if self.model is None or size_set not in ("full", "quick") or self.place()[0].type != "cpu":
            return size_set
        return f"large-{size_set}".removesuffix("-full") if parameters(self.config()) >= LARGE else size_set

    def place(self) -> tuple[torch.device, torch.dtype]:
        """Return the device and the type that "auto" stands for on this machine."""
        device, dtype, _ = choose_device(self.device, self.dtype)
        return device, dtype

    def arguments(self) -> list[str]:
        """Return the same settings as command line arguments, for a benchmark's child and for a stage's main.py."""
        options = {f"--{name.replace('_', '-')}": value for name, value in asdict(self).items() if value is not None}
        return [word for option in options.items() for word in option]

    def describe(self) -> dict[str, str]:
        """Return them for documents: the model's name without its folder, the device and the type in use."""
        device, dtype = self.place()
        name = Path(self.model).name if self.model else "bundled"
        facts = {"model": name, "device": device.type, "dtype": str(dtype).removeprefix("torch.")}
        return facts | {"load_format": self.load_format}


def engine_of(stage: str, loaded: Loaded, **options: Any) -> BaseEngine:
    """Return an engine of a stage as main.py makes it: on a GPU with graphs and the overlapped loop around it.

    Options that the stage does not have are left out. InvalidInput if something asked for cannot be had.
    """
    engine_class = load_engine(stage)
    known = {*inspect.signature(make_engine).parameters, *inspect.signature(engine_class).parameters}
    return make_engine(engine_class, loaded, **{name: value for name, value in options.items() if name in known})


def warm_engine(stage: str, loaded: Loaded, tokens: int, **options: Any) -> BaseEngine:
    """Return an engine with memory for `tokens` tokens, all of which has been touched: its first use is slow."""
    engine = engine_of(stage, loaded, kv_memory=tokens * loaded.config.kv_bytes_per_token(loaded.dtype), **options)
    for pages in (engine.cache.k, engine.cache.v):
        pages.zero_()
    return engine
