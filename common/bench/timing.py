"""How long one call takes on a device, for calls that take microseconds.

A GPU works on while Python goes ahead, so its own clock is read (CUDA events). Python needs longer to launch a small
kernel than the GPU needs to run it: a CUDA graph holds many calls, and is launched once. And a GPU's cache would keep
the inputs of a call that is repeated: calls take turns with inputs that are together larger than the cache.
"""

import gc
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from common.transfers import synchronize

CALLS = 32  # in one graph at least, so that its own launch is a small part
MOST_INPUTS = 32
REPEATS = 30


def median_seconds(
    function: Callable,
    device: torch.device,
    inputs: Sequence[tuple] = ((),),
    *,
    graph: bool = True,
    repeats: int = REPEATS,
) -> float:
    """Return seconds of one call of function(*arguments): the median of `repeats` means over a turn of all `inputs`.

    graph: on CUDA, replay a CUDA graph, so that gaps between kernels are those of the GPU; False: launch every call
    from Python, and wait for the last. A function that is replayed may neither synchronize nor read what is on the GPU.
    """
    for arguments in inputs:  # the first call compiles and allocates
        function(*arguments)
    if device.type != "cuda":
        return statistics.median(clocked(function, inputs) for _ in range(repeats))
    with torch.cuda.device(device):
        return statistics.median(clocked_on_cuda(function, inputs, graph, repeats))


def clocked(function: Callable, inputs: Sequence[tuple]) -> float:
    start = time.perf_counter()
    for arguments in inputs:
        function(*arguments)
    return (time.perf_counter() - start) / len(inputs)


def clocked_on_cuda(function: Callable, inputs: Sequence[tuple], graph: bool, repeats: int) -> list[float]:
    turns = -(-CALLS // len(inputs))

    def run() -> None:
        for _ in range(turns):
            for arguments in inputs:
                function(*arguments)

    if graph:
        torch.cuda.synchronize()
        held = torch.cuda.CUDAGraph()
        with torch.cuda.graph(held):
            run()
        run = held.replay
    seconds = []
    for _ in range(repeats + 3):  # the first ones are slower
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3 / (turns * len(inputs)))
    return seconds[3:]


def inputs_beyond_cache(nbytes: int, device: torch.device) -> int:
    """Return how many inputs of `nbytes` bytes are twice what the cache holds; small ones stay there, as in a model,
    where the operation before has just written them."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return min(max(2, -(-2 * cache // nbytes)), MOST_INPUTS)


def kernels_of(function: Callable[[], object], times: int, device: torch.device) -> list[tuple[str, float, float]]:
    """Call the function `times` times; return (name, start, end), in seconds, of each kernel that a GPU ran for it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:  # of the CPU nothing: that would slow it down
        for _ in range(times):
            function()
        synchronize(device)
    events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6) for event in events]


def free_memory(device: torch.device) -> None:
    """Give back what no engine holds any more, so that the next one finds it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
