"""What does it cost on a GPU to launch the small operations of a layer one by one, and what do fused ones save?

    python -m common.bench.experiments.kernels --models Qwen3-0.6B --json FILE

For each operation between the matrix products, for a whole block without attention, and for attention in decode: plain
PyTorch, torch.compile and the course's Triton kernels, beside the least time that the GPU can need. That floor is the
bytes to move over the measured bandwidth of a copy, but not less than the smallest kernel takes. (An operation
whose inputs fit into the GPU's cache can beat it; what a block computes for many tokens takes longer, and "products
alone" says how long.)

Times are medians of replayed CUDA graphs, where the gaps between kernels are the GPU's own; "launched" is the same from
Python, call by call. The seconds of a variant's first call, which compiles, are kept as well: torch.compile compiles
again in every row, Triton has its kernels from the first number of tokens on, and both are faster with a cache on disk.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from common.attention.triton_backend import why_not_triton
from common.loader import find_checkpoint
from common.loader.config import first_sentence, read_config
from common.loader.device import choose_device
from common.model import ModelConfig

from ..ceilings import copy_bytes_per_second
from ..documents import write_json
from ..hardware import hardware
from ..timing import REPEATS, inputs_beyond_cache, median_seconds, synchronize

if TYPE_CHECKING:
    from .kernel_cases import Case  # needs Triton; a machine without it gets one sentence

MODELS = ("Qwen3-0.6B", "Qwen3-8B")


@dataclass(frozen=True)
class Sizes:
    """tokens: in a step; requests, context: of attention in decode; compiler: the backend of torch.compile."""

    models: dict[str, ModelConfig]
    dtype: torch.dtype = torch.bfloat16
    tokens: tuple[int, ...] = (1, 32, 256, 2048)
    requests: tuple[int, ...] = (1, 8, 64, 256)
    context: int = 1024
    copy_bytes: int = 2**30
    compiler: str = "inductor"
    repeats: int = REPEATS


@torch.inference_mode()
def measure(device: torch.device, sizes: Sizes, show: Callable[[dict], None] = lambda row: None) -> dict[str, Any]:
    """Return a JSON value: the hardware, its bandwidth, and a row for each operation, model and number of tokens.

    show is called with each row once it is measured. ValueError where Triton cannot run.
    """
    reason = why_not_triton(device)
    if reason is not None:
        raise ValueError(f"the kernels cannot be measured here: {reason}")
    one = torch.zeros(1, device=device)
    document = {
        "hardware": hardware(device),
        "dtype": str(sizes.dtype).removeprefix("torch."),
        "context": sizes.context,
        "copy_bytes_per_second": copy_bytes_per_second(device, sizes.copy_bytes, sizes.repeats),
        "smallest_kernel_us": 1e6 * median_seconds(one.add_, device, [(1.0,)], repeats=sizes.repeats),
    }
    bandwidth, rows = document["copy_bytes_per_second"], []
    for model, case in all_cases(device, sizes):
        floor = max(1e6 * case.nbytes / bandwidth, document["smallest_kernel_us"])
        microseconds, first_calls, failed = times_of(case, device, sizes)
        row = {
            "operation": case.operation,
            "model": model,
            "tokens": case.tokens,
            "bytes": case.nbytes,
            "floor_us": floor,
            "us": microseconds,
            "over_floor": {name: value / floor for name, value in microseconds.items()},
            "first_call_s": first_calls,
            "missing": case.missing | failed,
        }
        show(row)
        rows.append(row)
    return document | {"rows": rows}


def all_cases(device: torch.device, sizes: Sizes) -> Iterator[tuple[str, "Case"]]:
    from .kernel_cases import attention_case, layers_of, model_cases

    for name, config in sizes.models.items():
        layers = layers_of(config, device, sizes.dtype)
        for tokens in sizes.tokens:
            yield from ((name, case) for case in model_cases(layers, tokens))
        del layers
        for requests in sizes.requests:
            yield name, attention_case(config, requests, sizes.context, device, sizes.dtype)


def times_of(case: "Case", device: torch.device, sizes: Sizes) -> tuple[dict, dict, dict]:
    """Return by variant microseconds of a call, seconds of the first one, and for those that fail the reason."""
    inputs = [tuple(case.arguments(i)) for i in range(inputs_beyond_cache(case.nbytes, device))]
    microseconds, first_calls, failed = {}, {}, {}
    for name, function in case.variants.items():
        if name == "compiled":
            torch.compiler.reset()  # it gives up compiling a function for more than a few shapes
            function = torch.compile(function, fullgraph=True, dynamic=False, backend=sizes.compiler)
        try:
            first_calls[name] = seconds_of_one(function, inputs[0], device)
            # A variant that compiled again for the next input, or gave up, would not be what its name says.
            with torch.compiler.set_stance("fail_on_recompile"):
                for graph in (True, False) if case.launched else (True,):
                    seconds = median_seconds(function, device, inputs, graph=graph, repeats=sizes.repeats)
                    microseconds[name if graph else f"{name}, launched"] = 1e6 * seconds
        except RuntimeError as error:  # a long benchmark does not end because a compiler or a library refuses a case
            failed[name] = first_sentence(error)
    return microseconds, first_calls, failed


def seconds_of_one(function: Callable, arguments: tuple, device: torch.device) -> float:
    start = time.perf_counter()
    function(*arguments)
    synchronize(device)
    return time.perf_counter() - start


def line(row: dict) -> str:
    """Return a row of the table: each variant's time, and in parentheses how many times the floor that is."""
    times = (f"{name} {value:.1f} ({row['over_floor'][name]:.1f})" for name, value in row["us"].items())
    missing = (f"no {name}: {reason}" for name, reason in row["missing"].items())
    start = f"{row['model']:12} {row['operation']:18} {row['tokens']:5} {row['floor_us']:9.1f}"
    return " | ".join([start, *times, *missing])


def main() -> int:
    parser = argparse.ArgumentParser("python -m common.bench.experiments.kernels", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument(
        "--models", nargs="+", default=MODELS, metavar="NAME", help="bundled configs, default: %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    try:
        device, _, _ = choose_device("cuda")
        sizes = Sizes({name: read_config(find_checkpoint(name, with_weights=False)) for name in args.models})
        print(f"{'model':12} {'operation':18} tokens floor | variant, in us (times the floor)", file=sys.stderr)
        document = measure(device, sizes, lambda row: print(line(row), file=sys.stderr, flush=True))
    except (ValueError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    print(write_json(args.json, {"benchmark": "common.bench.experiments.kernels", **document}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
