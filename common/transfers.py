"""Numbers that go to the device and come back, without making the host wait for the device.

A GPU works through a queue, and the host is ahead of it. `torch.tensor(values, device="cuda")` waits until the queue is
empty, and so does `.tolist()`; and while the host then does its own work, the device does nothing. From pinned memory,
which the system never moves, a copy is one more entry of the queue. On a CPU all of this is a plain tensor.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def current(device: torch.device) -> AbstractContextManager:
    """Within, a GPU is the current one of this thread: new streams, events and Triton's launches belong to that."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def to_device(values: Sequence, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of these numbers, or lists of numbers, on the device; the host does not wait."""
    host = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


class ToHost:
    """The numbers of a tensor, on their way to the host from the moment this is made."""

    def __init__(self, tensor: Tensor):
        self.event, self.host = None, tensor
        if tensor.device.type == "cuda":
            self.host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.host.copy_(tensor, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(tensor.device))  # where the copy is, whatever GPU is current

    def tolist(self) -> list:
        """Waits until they are here."""
        if self.event is not None:
            self.event.synchronize()
        return self.host.tolist()
