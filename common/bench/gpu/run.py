"""What a part has in its hands while it measures: a place, models, engines, ceilings, and the document it writes."""

import gc
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from common.bench.documents import rounded, write_atomically
from common.bench.predict import copy_bytes_per_second, decode_bytes, matmul_flops_per_second, step_flops
from common.engine import BaseEngine
from common.gpu.accelerate import make_engine
from common.loader import Loaded, find_checkpoint, load_model
from common.loader.config import read_config
from common.loader.device import choose_device
from common.model import ModelConfig
from common.process import freeze_loaded_objects
from common.stages import load_engine

SWITCHES = ("graphs", "overlap")  # what changes how fast an engine is on a GPU, and nothing else
TINY_MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


class Run:
    """One part being measured. `document` is what is written to `path`, at every `keep`.

    sizes: the part's own. device, dtype: those that "auto" stands for here.
    """

    def __init__(self, path: Path, document: dict[str, Any]):
        self.path, self.document = path, document
        self.part: str = document["part"]
        self.sizes: dict[str, Any] = document["sizes"]
        self.device, self.dtype, _ = choose_device()
        self._began = time.perf_counter()
        self._loaded: dict[str, str] = {}  # models by name, and what their weights are

    def keep(self, **figures: Any) -> None:
        """Adds figures to the document and writes it: what is kept is not lost, whatever happens next."""
        self.document["figures"] |= figures
        self.document["seconds"] = time.perf_counter() - self._began
        write_atomically(self.path, json.dumps(rounded(self.document), indent=1) + "\n")

    def say(self, text: str) -> None:
        """Progress, for whoever watches."""
        print(f"    {time.perf_counter() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def log(self, name: str) -> Path:
        """A file beside the document, for the output of a program."""
        return self.path.with_name(f"{self.path.name.split('.')[0]}-{name}.log")

    def headline(self, **numbers: float | None) -> None:
        """The few numbers that the summary of all parts shows."""
        self.document["headline"] = numbers
        self.keep()

    def ceilings(self) -> tuple[float, float]:
        """Bytes per second of a large copy and FLOPs per second of a large product, measured once in each part."""
        if "ceilings" not in self.document:
            self.document["ceilings"] = {
                "copy_bytes_per_second": copy_bytes_per_second(self.device),
                "matmul_flops_per_second": matmul_flops_per_second(self.device, self.dtype),
            }
            free_memory(self.device)
            copies, products = self.document["ceilings"].values()
            self.say(f"copies {copies / 1e12:.3g} TB/s, matrix products {products / 1e12:.3g} TFLOP/s")
        ceilings = self.document["ceilings"]
        return ceilings["copy_bytes_per_second"], ceilings["matmul_flops_per_second"]

    def step_floor(self, config: ModelConfig, requests: int, context: float) -> float:
        """Seconds that a step cannot be faster than in which so many requests decode, `context` tokens behind each:
        the time to read every weight and all K and V, or that of the arithmetic where it is longer."""
        bytes_per_second, flops_per_second = self.ceilings()
        reading = decode_bytes(config, round(requests * context), self.dtype) / bytes_per_second
        return max(reading, requests * step_flops(config, 1, round(context)) / flops_per_second)

    def load(self, name: str, dtype: torch.dtype | str = "auto") -> Loaded:
        """ "bundled", "tiny" (a config of no use but to run quickly), or a bundled config, with random weights."""
        if name == "bundled":
            loaded = load_model(None, dtype=dtype)
        else:
            with config_folder(name) as folder:
                loaded = load_model(folder, dtype=dtype, load_format="dummy")
        freeze_loaded_objects()
        self._loaded[name] = "trained" if name == "bundled" else "random"
        names, kinds = list(self._loaded), set(self._loaded.values())
        if len(kinds) > 1:
            names = [f"{model} ({weights} weights)" for model, weights in self._loaded.items()]
        self.document["settings"] |= {
            "model": " and ".join(names),
            "dtype": str(loaded.dtype).removeprefix("torch."),
            "load_format": "dummy" if kinds == {"random"} else "auto",
        }
        self.say(f"{name} is loaded")
        return loaded

    def engine(
        self, stage: str, loaded: Loaded, graphs: bool | None = None, overlap: bool | None = None, **options: Any
    ) -> BaseEngine:
        """An engine of a stage with those of the options that the stage has; on a GPU with graphs and the overlapped
        loop around it, as common/gpu/accelerate.py says. ValueError if they are asked for and cannot be had."""
        engine_class = load_engine(stage)
        known = inspect.signature(engine_class).parameters
        options = {name: value for name, value in options.items() if name in known}
        return make_engine(engine_class, loaded, graphs, overlap, **options)

    def try_engine(self, stage: str, loaded: Loaded, **options: Any) -> BaseEngine | None:
        """The same, or None with the reason in the figures if it cannot be had here."""
        try:
            return self.engine(stage, loaded, **options)
        except ValueError as error:
            name = f"{stage}, {mode_name({key: options[key] for key in SWITCHES if key in options})}"
            self.keep(missing=self.document["figures"].get("missing", {}) | {name: str(error)})
            self.say(f"{name}: {error}")
            return None

    def modes(self) -> list[dict[str, bool]]:
        """Every way to set graphs and overlap: both, neither, then one of them. [{}] without a GPU, which has none."""
        if self.device.type != "cuda":
            return [{}]
        ways = ((True, True), (False, False), (True, False), (False, True))
        return [dict(zip(SWITCHES, values, strict=True)) for values in ways]


@contextmanager
def config_folder(name: str) -> Iterator[Path]:
    """The folder with config.json of a bundled config; of "tiny" a temporary one."""
    if name != "tiny":
        yield find_checkpoint(name, with_weights=False)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(TINY_MODEL))
        yield Path(folder)


def config_of(name: str) -> ModelConfig:
    with config_folder(name) as folder:
        return read_config(folder)


def mode_name(mode: dict[str, bool]) -> str:
    """ "graphs and overlap", "graphs", "neither" ...; "as it comes" where there is nothing to set."""
    return " and ".join(name for name, on in mode.items() if on) or ("neither" if mode else "as it comes")


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all it was given: before that, a clock says nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Gives back what nobody holds any more, so that the next engine finds it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_gib(device: torch.device) -> float | None:
    """The most that was allocated since `free_memory`; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
