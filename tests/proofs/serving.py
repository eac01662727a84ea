"""Serving compiles nothing, a step mixes no devices, and the host waits for the device only where tokens are wanted.

Engines serve with tensors that say they are on cuda:0, and have values on the CPU: a wrapper around each, which sees
every operation. It notes operations that take tensors of both devices, and whatever makes the host wait: reading a
value, and copies that are not from or to pinned memory as one more entry of the queue. What the course allows itself is
`WANTED`.

The course's kernels are compiled for an H100 when they are first launched (pretended_gpu.py), and do nothing: their
results are zeros, which does not matter here. Triton compiles a kernel again for each type that it is launched with,
for numbers that are 1 or a multiple of 16, and for pointers that are a multiple of 16 or not. All of that depends on
lengths, and these are random.
"""

import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from pretended_gpu import pretended_gpu
from pytest import MonkeyPatch
from torch.overrides import TorchFunctionMode

from common.acceleration import accelerate, graphs
from common.fused import fuse
from common.loader import Loaded, load_model
from common.loader import draft as draft_loader
from common.sampling import SamplingParams
from common.stages import load_engine

ROOT = Path(__file__).parents[2]
LAYERS = 1  # of the bundled models: all layers run the same code
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
aten = torch.ops.aten
READS = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default}
COPIES = {aten._to_copy.default, aten.copy_.default}
ZEROS = {torch.empty: torch.zeros, torch.empty_like: torch.zeros_like}  # what kernels leave as it is
# The functions that may wait: those that hand tokens to the host.
WANTED = {"04": {"ToHost.tolist"}, "05": {"ToHost.tolist"}, "06": {"ToHost.tolist"}}
WANTED["07"] = WANTED["08"] = {"ToHost.tolist", "reject", "DraftModel._draft_one"}
PLAIN, WARM = {"ignore_eos": True}, {"temperature": 0.7, "ignore_eos": True}
KINDS = {  # of requests that run together
    "greedy": [PLAIN],
    "plain": [PLAIN, WARM],
    "filters and logprobs": [PLAIN, WARM | {"top_k": 5, "top_p": 0.9, "min_p": 0.1}, WARM | {"logprobs": 3}],
    "penalties": [WARM | {"repetition_penalty": 1.1, "frequency_penalty": 0.1}, PLAIN | {"logit_bias": ((7, 1.0),)},
                  PLAIN | {"min_tokens": 3, "stop_token_ids": (5,)}],
}  # fmt: skip
# Loops of engines: stage, graphs, overlap, and other options. All kinds run in one loop of each way to sample; the
# others, which sample with the same code, run one. Steps of 08 are those of 07, and pages travel beside them.
DRAFTS = {"num_draft_tokens": 2}
SAMPLERS = [("06", True, True, {}), ("07", False, False, DRAFTS)]
LOOPS = [
    ("04", False, False, {}), ("04", False, True, {}), ("05", True, False, {}), ("06", False, True, {}),
    ("06", False, False, {"attention": "torch"}), ("07", True, False, DRAFTS),
    ("07", True, False, DRAFTS | {"draft": "lookup"}), ("08", False, False, DRAFTS),
]  # fmt: skip
CASES = [*product(KINDS, SAMPLERS), *product(["plain"], LOOPS)]
noted: Counter[tuple[str, str, str]] = Counter()  # kind, function, and the lines that led there


def note(kind: str, what: object = "") -> None:
    """Note it with the function of the course that does it, and the lines of the course that led there."""
    frames = [frame for frame, _ in traceback.walk_stack(None) if frame.f_code.co_filename.startswith(str(ROOT))]
    frames = [frame for frame in frames if frame.f_code.co_filename != __file__]
    owner, name = frames[0].f_locals.get("self"), frames[0].f_code.co_name
    lines = (f"{Path(frame.f_code.co_filename).relative_to(ROOT)}:{frame.f_lineno}" for frame in frames[:3])
    function = f"{type(owner).__name__}.{name}" if owner is not None else name
    noted[kind, function, f"{what} {' < '.join(lines)}".strip()] += 1


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return the function's result, or for lists and tuples one of its results for what they hold."""
    return type(value)(mapped(function, one) for one in value) if type(value) in (list, tuple) else function(value)


class OnDevice(torch.Tensor):
    """A tensor on the CPU that says it is on CUDA."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )

    def __init__(self, inner: torch.Tensor):
        self.inner = inner

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        plain = []

        def inner(value: Any) -> Any:
            if type(value) is torch.Tensor and value.dim():
                plain.append(value)
            return value.inner if isinstance(value, OnDevice) else value

        inner_args = mapped(inner, args)
        inner_kwargs = {name: mapped(inner, one) for name, one in (kwargs or {}).items()}
        if operation in READS:
            note("waits", operation)
        if plain and operation not in COPIES:
            note("mixes devices", operation)
        result = operation(*inner_args, **inner_kwargs)
        if operation._schema.name.endswith("_") or operation is aten.copy_.default:
            return args[0]  # it has been changed in place
        return mapped(lambda x: cls(x) if type(x) is torch.Tensor else x, result)


class Factories(TorchFunctionMode):
    """Makes tensors and moves them as a machine with CUDA would."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function, kwargs = ZEROS.get(function, function), dict(kwargs or {})
        pinned = kwargs.pop("pin_memory", False) or function is torch.Tensor.pin_memory
        if function is torch.Tensor.to:
            return self.move(*args, **kwargs)
        if function in (torch.Tensor.tolist, torch.Tensor.cpu) and isinstance(args[0], OnDevice):
            note("waits", function.__name__)
            return function(args[0].inner.clone())
        if function is torch.Tensor.copy_ and type(args[0]) is torch.Tensor and isinstance(args[1], OnDevice):
            if not kwargs.get("non_blocking"):
                note("waits", "copy_")
            return args[0].copy_(args[1].inner)
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            if function is torch.tensor:
                note("waits", "torch.tensor")
            result = function(*args, **kwargs | {"device": CPU})
            return result if isinstance(result, OnDevice) else OnDevice(result)
        result = args[0] if function is torch.Tensor.pin_memory else function(*args, **kwargs)
        if pinned:
            result.pinned = True
        return result

    @staticmethod
    def move(tensor: torch.Tensor, *targets: Any, non_blocking: bool = False, **named: Any) -> torch.Tensor:
        targets = [*targets, *named.values()]
        dtype = next((x for x in targets if isinstance(x, torch.dtype)), tensor.dtype)
        device = next((torch.device(x) for x in targets if isinstance(x, (str, torch.device))), tensor.device)
        was_there = isinstance(tensor, OnDevice)
        if device.type == "cuda" and not was_there:
            if tensor.numel() and not (non_blocking and getattr(tensor, "pinned", False)):
                note("waits", "to the device")
            return OnDevice(tensor.clone().to(dtype))
        if device.type == "cpu" and was_there:
            note("waits", "to the host")
            return tensor.inner.to(dtype)
        return tensor.type(dtype) if dtype != tensor.dtype else tensor


@cache
def on_device(name: str | None) -> Loaded:
    """Return a bundled checkpoint, cut to LAYERS, whose parameters and tables say they are on CUDA."""
    loaded = load_model(name, device="cpu", dtype="bfloat16", fused=False)
    context = 400 if name == "draft" else 1024  # some texts are too long for the draft model
    model, config = loaded.model, replace(loaded.config, num_layers=LAYERS, context_length=context)
    model.blocks, model.config = model.blocks[:LAYERS], config
    model.cos, model.sin = model.cos[:context], model.sin[:context]
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for key in [key for key, tensor in tensors.items() if tensor is not None]:
                vars(module)[key] = OnDevice(tensors.pop(key).data)
    return replace(loaded, model=fuse(model), config=config, device=CUDA)


def pretend(patch: MonkeyPatch, with_graphs: bool) -> None:
    """Let the course find a GPU in place of what only a real one has."""
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: note("waits", "synchronize"))
    for owner, name, value in (
        (torch.cuda, "Event", lambda: event),
        (torch.cuda, "device", lambda device: nullcontext()),
        (torch.cuda, "device_of", lambda tensor: nullcontext()),
        (torch.cuda, "current_stream", lambda device: None),
        (torch.cuda, "mem_get_info", lambda device: (0, 0)),
        (torch.cuda, "get_device_capability", lambda device: (9, 0)),
        (torch.cuda, "get_device_name", lambda device: "pretended"),
        (graphs, "Capture", lambda: lambda function: function() or function),
        (accelerate, "why_no_graphs", lambda *_: None if with_graphs else "no"),
        (draft_loader, "load_once", lambda name, *_: on_device(name)),
    ):
        patch.setattr(owner, name, value)


def run(kind: str, stage: str, with_graphs: bool, overlap: bool, options: dict) -> Iterator[str]:
    """Serve requests of that kind which come at random times; yield what is wrong, one sentence each."""
    options = {"kv_memory": "64M", "max_running": 12, "token_budget": 128} | options
    rng, steps = random.Random(0), 0
    waiting = [(rng.randint(1, 600), rng.randint(1, 9)) for _ in range(6)]
    with MonkeyPatch.context() as patch, pretended_gpu(90) as compiled, Factories():
        pretend(patch, with_graphs)
        engine = accelerate.make_engine(load_engine(stage), on_device(None), with_graphs, overlap, **options)
        noted.clear()
        at_start = len(compiled)
        while waiting or engine.has_unfinished:
            while waiting and rng.random() < 0.4:
                (prompt, answer), params = waiting.pop(), KINDS[kind][len(waiting) % len(KINDS[kind])]
                engine.add([rng.randrange(512) for _ in range(prompt)], SamplingParams(max_tokens=answer, **params))
            engine.step()
            steps += 1
    for (what, function, lines), times in noted.items():
        if what != "waits" or function not in WANTED[stage]:
            yield f"{what} {times} times: {lines}"
    yield from (f"compiled while serving: {one.kernel}" for one in compiled[at_start:])
    if stage > "04" and not at_start:
        yield "no kernel was launched"


def prove() -> Iterator[str]:
    """Yield what is wrong, one sentence each."""
    for kind, loop in CASES:
        yield from (f"{kind} in {loop}: {sentence}" for sentence in run(kind, *loop))
    print(f"{len(CASES)} engines of stages 04 to 08 served, on tensors that say they are on {CUDA}")
