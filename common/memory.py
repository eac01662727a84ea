"""Memory for keys and values."""

import math

import numpy
import torch
from torch import Tensor


def zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """`torch.zeros`; on a CPU without writing them: the system gives a page of zeros when it is first touched."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    return torch.from_numpy(numpy.zeros(math.prod(shape) * dtype.itemsize, numpy.uint8)).view(dtype).view(shape)
