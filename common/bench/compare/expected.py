"""What arithmetic says about a headline's ratio, from the sizes of the model and what the same run counted.

A prediction that leaves out fixed costs, which a small model mostly consists of, is a bound: it is drawn beside the
ratio as a line, and the distance is what there is to explain.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from common.loader import CHECKPOINTS, find_checkpoint
from common.loader.config import read_config
from common.loader.device import DTYPES
from common.model import ModelConfig

from ..cost_model import decode_bytes, step_flops

Sides = Mapping[str, Mapping[str, Any]]


class Prediction(NamedTuple):
    value: float
    why: str


def config_of(machine: Mapping[str, Any], sizes: Mapping[str, Any]) -> ModelConfig | None:
    """Return the model of an entry, if the course has its config; a size set may name a model of its own."""
    name = sizes.get("model") or machine["model"]
    if name != "bundled" and not (CHECKPOINTS / "configs" / name).is_dir():
        return None
    return read_config(find_checkpoint(None if name == "bundled" else name, with_weights=False))


def predicted_ratio(name: str, entry: Mapping[str, Any], machine: Mapping[str, Any]) -> Prediction | None:
    """Return the prediction for a benchmark's ratio; None where what it needs was not measured, or there is none."""
    predict, config = PREDICTIONS.get(name[:2]), config_of(machine, entry["sizes"])
    if predict is None or config is None:
        return None
    medians = {
        side: {key: figure["median"] for key, figure in figures.items() if "median" in figure}
        for side, figures in entry["figures"].items()
    }
    try:
        return predict(entry["sizes"], medians, config, DTYPES[machine["dtype"]])
    except (KeyError, ValueError, IndexError, ZeroDivisionError):  # other sizes, or figures of an older benchmark
        return None


def naive(sizes: dict, sides: Sides, config: ModelConfig, dtype: torch.dtype) -> Prediction:
    first, *_, last = (step_flops(config, length) for length in sizes["lengths"])
    return Prediction(last / first, "the FLOPs of a step over the whole sequence, at each length")


def kv_cache(sizes: dict, sides: Sides, config: ModelConfig, dtype: torch.dtype) -> Prediction:
    length = sizes["calibration_length"]
    before, now = (side["ms_per_token"][sizes["lengths"].index(length)] for side in list(sides.values())[:2])
    past = range(sizes["prompt"], sizes["prompt"] + sizes["compared_answer"])
    without = before * sum(step_flops(config, tokens) for tokens in past) / step_flops(config, length)
    cached = now * sum(decode_bytes(config, tokens, dtype) for tokens in past) / decode_bytes(config, length, dtype)
    return Prediction(without / cached, f"FLOPs without a cache, bytes with it, at the rates of {length} tokens")


def streaming(sizes: dict, sides: Sides, config: ModelConfig, dtype: torch.dtype) -> Prediction:
    now = sides["03_streaming"]
    ratio = now["alone_whole_answer_seconds"][-1] / now["alone_first_text_seconds"][-1]
    return Prediction(ratio, "stage 02 shows its first text when stage 03 shows its last")


def continuous_batching(sizes: dict, sides: Sides, config: ModelConfig, dtype: torch.dtype) -> Prediction:
    at = sizes["clients"].index(sizes["compared_clients"])
    together = sides["04_continuous_batching"]["requests_per_step"][at]
    return Prediction(together, f"a step with {together:.1f} requests, their mean, takes no less than a step with one")


def paged_attention(sizes: dict, sides: Sides, config: ModelConfig, dtype: torch.dtype) -> Prediction:
    before, now = (side["most_running"] for side in list(sides.values())[:2])
    return Prediction(now / before, f"{now:.0f} requests run at once in place of {before:.0f}")


def prefix_cache(sizes: dict, sides: Sides, config: ModelConfig, dtype: torch.dtype) -> Prediction:
    shared = sizes["shared_percent"][-1]
    return Prediction(100 / (100 - shared), f"{100 - shared} percent of the prompt remain to be computed")


def disaggregated(sizes: dict, sides: Sides, config: ModelConfig, dtype: torch.dtype) -> Prediction:
    at, quiet = sizes["rates"].index(sizes["stated"]), sides["08_disaggregated"]["itl_p50_ms"]
    piece = sides["07_speculative"]["full_piece_ms"]
    return Prediction(piece / quiet[at], "a step with a full piece of a prompt, over a step of the decode worker")


PREDICTIONS: dict[str, Callable[[dict, Sides, ModelConfig, torch.dtype], Prediction]] = {
    "01": naive,
    "02": kv_cache,
    "03": streaming,
    "04": continuous_batching,
    "05": paged_attention,
    "06": prefix_cache,
    "08": disaggregated,
}
