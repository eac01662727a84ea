"""CUDA graphs without CUDA: operations are recorded with the very tensors they were called with, and then done again.

As with a graph, a replay runs no Python of the model: shapes, numbers and addresses are those of the recording, and
what has changed since is what lies in the static buffers. Code that looks at a value on the host during the recording
fails.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from common.acceleration import accelerate, graphs
from common.attention import PagedBatch
from common.attention.torch_backend import TorchAttention
from common.engine import BaseEngine
from common.loader import Loaded
from common.model import Transformer

HOST_LOOKS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.nonzero.default}
SMALL_POOL = 1_424  # tokens: enough for the contract's longest prompt, and too few for all at once


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        assert operation not in HOST_LOOKS, f"{operation} depends on a value: a CUDA graph cannot hold that"
        result = operation(*args, **(kwargs or {}))
        self.calls.append((operation, args, kwargs or {}, result))
        return result


class Capture:
    """Takes the place of `common.acceleration.graphs.Capture`."""

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        with Recorder() as recorder:
            function()
        return partial(self.replay, recorder.calls)

    @staticmethod
    def replay(calls) -> None:
        new: dict[int, torch.Tensor] = {}  # by the identity of the recorded one

        def current(value):
            return new.get(id(value), value) if isinstance(value, torch.Tensor) else value

        for operation, args, kwargs, result in calls:
            again = operation(*tree_map(current, args), **tree_map(current, kwargs))
            for was, now in zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True):
                if isinstance(was, torch.Tensor):
                    new[id(was)] = now


class LateTorch(TorchAttention):
    """The torch backend as a kernel would be: it looks at lengths and page tables only when it attends."""

    name, capturable = "torch", True

    def prepare(self, batch: PagedBatch) -> PagedBatch:
        return batch

    def write(self, k, v, k_pages, v_pages, slot_mapping):
        for new, pages in ((k, k_pages), (v, v_pages)):
            slots = pages.flatten(0, 1)
            place_of_none = torch.where(slot_mapping < 0, len(slots), slot_mapping)
            slots.copy_(torch.cat([slots, slots[:1]]).index_copy_(0, place_of_none, new)[:-1])

    def attend(self, q, k_pages, v_pages, plan: PagedBatch):
        return super().attend(q, k_pages, v_pages, super().prepare(plan))


def plain(model: Transformer) -> Transformer:
    """Return the model without fused kernels: the recorder sees torch's operations only."""
    made = Transformer.__new__(Transformer)
    vars(made).update(vars(model))
    made.kernels, made.most_few = SimpleNamespace(__name__="", apply_linear=lambda layer, x: layer(x)), 0
    return made


TILE, COUNTS = 4, ()


def add_lora(x, y, lora_a, lora_b, spans, order, tiles) -> None:
    """As that of common/fused/triton_adapters.py: all programs run, whether their tiles have rows or none."""
    for first, last, adapter in tiles.unsqueeze(2).unbind():
        places = first + torch.arange(TILE)
        rows = order.index_select(0, places.clamp(max=len(order) - 1)) * (places < last)
        narrow = x.index_select(0, rows) @ lora_a.index_select(0, adapter)[0].T
        change = narrow @ lora_b.index_select(0, adapter)[0]
        y.index_add_(0, rows, change * (places < last)[:, None])


@contextmanager
def in_place() -> Iterator[None]:
    """Record with the stand-in."""
    with patch.object(graphs, "Capture", Capture), patch.object(accelerate, "why_no_graphs", lambda *_: None):
        yield


def graphed(engine_class: type[BaseEngine], overlap: bool) -> Callable[[Loaded], BaseEngine]:
    """Makes engines of that class whose decode is replayed, in a pool so small that requests are preempted."""

    def make(loaded: Loaded, **options) -> BaseEngine:
        if loaded.device.type == "cuda":  # there is no need to pretend
            return accelerate.make_engine(engine_class, loaded, True, overlap, **{"kv_memory": "1G"} | options)
        pool = {"kv_memory": SMALL_POOL * loaded.config.kv_bytes_per_token(loaded.dtype)}
        options = {"max_running": 6, "token_budget": 256} | pool | options  # a budget that is given is not measured
        loaded = replace(loaded, model=plain(loaded.model))
        late = lambda *_: (LateTorch(loaded.device, loaded.dtype), "attention=torch")  # noqa: E731
        names = engine_class.__init__.__globals__
        drafter = names["DraftModel"].__init__.__globals__ if "DraftModel" in names else names
        with (
            in_place(),
            patch.dict(names, choose_attention=late),
            patch.dict(drafter, choose_attention=late),
        ):
            return accelerate.make_engine(engine_class, loaded, graphs=True, overlap=overlap, **options)

    return make
