"""How long one call takes on a device, for calls that take microseconds.

A GPU works on while Python goes ahead, and Python needs longer to launch a small kernel than the GPU needs to run it: a
CUDA graph holds many calls, and is launched once. And a GPU's cache would keep the inputs of a call that is repeated:
calls take turns with inputs that are together larger than the cache.
"""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from common.transfers import synchronize

CALLS = 32  # calls that are launched before one wait for the GPU, so that the wait is a small part of the time
REPLAY_MS = 5  # milliseconds of calls in one graph, so that its launch is a small part of the time
MAX_INPUTS = 32
REPEATS = 30


def median_seconds(
    function: Callable,
    device: torch.device,
    inputs: Sequence[tuple],
    *,
    graph: bool = True,
    repeats: int = REPEATS,
) -> float:
    """Return seconds of one call of function(*arguments): the median of several means over a turn of all `inputs`.

    graph: on CUDA, let Triton replay a CUDA graph ten times, so that gaps between kernels are those of the GPU; False:
    launch every call from Python, and wait for the last, `repeats` times. A function that is replayed may neither
    synchronize nor read what is on the GPU.
    """

    def turn() -> None:
        for arguments in inputs:
            function(*arguments)

    turn()  # the first call compiles and allocates
    synchronize(device)
    if graph and device.type == "cuda":
        from triton.testing import do_bench_cudagraph

        with torch.cuda.device(device):
            return do_bench_cudagraph(turn, rep=REPLAY_MS, return_mode="median") / 1e3 / len(inputs)
    turns = -(-CALLS // len(inputs)) if device.type == "cuda" else 1
    moments = [time.perf_counter()]
    for _ in range(repeats):
        for _ in range(turns):
            turn()
        synchronize(device)
        moments.append(time.perf_counter())
    return statistics.median(after - before for before, after in pairwise(moments)) / turns / len(inputs)


def inputs_beyond_cache(nbytes: int, device: torch.device) -> int:
    """Return how many inputs of `nbytes` bytes are twice what the cache holds; small ones stay there, as in a model,
    where the operation before has just written them."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return min(max(2, -(-2 * cache // nbytes)), MAX_INPUTS)


def kernels_of(function: Callable[[], object], times: int, device: torch.device) -> list[tuple[str, float, float]]:
    """Call the function `times` times; return (name, start, end), in seconds, of each kernel that a GPU ran for it.

    On a CPU: of each operation, also of those within others.
    """
    from torch.profiler import ProfilerActivity, profile

    kind = device.type.upper()  # On a GPU, without the CPU's events: they would slow it down.
    with profile(activities=[getattr(ProfilerActivity, kind)]) as profiler:
        for _ in range(times):
            function()
        synchronize(device)
    wanted = getattr(torch.autograd.DeviceType, kind)
    events = [event for event in profiler.events() if event.device_type == wanted]
    return [(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6) for event in events]


def free_memory(device: torch.device) -> None:
    """Give back what no engine holds any more, so that the next one finds it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
