"""Copy numbers to the device and back without making the host wait.

A GPU works through a queue, and the host runs ahead of it. `torch.tensor(values, device="cuda")` waits until the queue
is empty, and so does `.tolist()`; while the host then does its own work, the device is idle. From pinned memory, which
the system never moves, a copy is one more entry in the queue. On a CPU these are plain tensors.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy
import torch
from torch import Tensor


def current(device: torch.device) -> AbstractContextManager:
    """Return a context in which this thread's new streams, events and Triton's launches belong to this GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given: a clock that is read before says nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def to_device(values: Sequence, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of these numbers, or lists of numbers, on the device; the host does not wait.

    dtype: one that NumPy has, so not bfloat16. NumPy reads a list twice as fast as torch does.
    """
    host = torch.from_numpy(numpy.asarray(values, dtype=str(dtype).removeprefix("torch.")))
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


class ToHost:
    """A copy of a tensor to the host, which starts when this object is created."""

    def __init__(self, tensor: Tensor):
        self.event, self.host = None, tensor
        if tensor.device.type == "cuda":
            self.host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.host.copy_(tensor, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(tensor.device))  # the copy's stream, whatever GPU is current

    def tolist(self) -> list:
        """Wait for the copy to end, and return its numbers."""
        if self.event is not None:
            self.event.synchronize()
        return self.host.tolist()
