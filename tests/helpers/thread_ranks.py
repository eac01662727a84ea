"""Ranks that are threads, for tests of what ranks say to each other."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist


class Threads:
    """Stands in for `torch.distributed` where the ranks are threads of this process, called rank_0 and so on."""

    ReduceOp = dist.ReduceOp

    def __init__(self, count: int):
        self.count, self.barrier, self.places = count, threading.Barrier(count, timeout=20), [None] * count

    def run(self, function) -> list:
        """Return the results of `function(rank)`, run by all ranks at the same time."""
        with ThreadPoolExecutor(self.count, thread_name_prefix="rank") as pool:
            return list(pool.map(function, range(self.count)))

    def exchange(self, value: Any) -> list[Any]:
        self.places[int(threading.current_thread().name.split("_")[1])] = value
        self.barrier.wait()
        values = list(self.places)
        self.barrier.wait()
        return values

    def all_reduce(self, tensor, op=dist.ReduceOp.SUM) -> None:
        together = torch.stack(self.exchange(tensor.clone()))
        tensor.copy_(together.sum(0) if op == dist.ReduceOp.SUM else together.amin(0))

    def all_gather(self, parts, tensor) -> None:
        for part, other in zip(parts, self.exchange(tensor.clone()), strict=True):
            part.copy_(other)
