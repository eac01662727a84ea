"""A stage's engine with what a GPU needs around it: graphs (graphs.py) and the overlapped loop (overlap.py).

Both shorten the time in which a GPU waits for Python, so both are on where there is a GPU. The stages do not know of
them: without them an engine is what its stage's engine.py says, line by line.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from ..engine import BaseEngine
from ..errors import InvalidInput, counted
from ..fused.packed import slowness_of_bfloat16
from ..kv_copies import ASIDE_BYTES
from ..kv_tiers import NO_TIERS, TierOptions, add_tiers
from ..loader import Loaded
from ..lora import adapter_bytes, add_adapters, read_adapters
from ..memory import graph_bytes
from ..model import Transformer
from ..policies import FIRST_COME, Scheduling, add_policy
from ..token_budget import choose_token_budget, pace
from ..transfers import current
from .graphs import GraphedModel, ladder, why_no_graphs
from .overlap import OverlappedLoop
from .warm_up import warm_up

MANY, MIN_GAIN = 64, 1.1  # requests whose products are timed in two types; the ratio from which on there is a note
VERIFIED = 64  # rows: graphs for requests with draft tokens go up to these, even if few requests run


def make_engine(
    engine_class: type[BaseEngine],
    loaded: Loaded,
    graphs: bool | None = None,
    overlap: bool | None = None,
    tiers: TierOptions = NO_TIERS,
    scheduling: Scheduling = FIRST_COME,
    loras: Mapping[str, Path] | None = None,
    **options,
) -> BaseEngine:
    """Return `engine_class(loaded, **options)`, with graphs for decode and the overlapped loop if wanted.

    graphs, overlap: None turns them on on a GPU, where the engine allows them. tiers: for evicted pages. scheduling:
    which requests are first. loras: folders of adapters, by name. Raise InvalidInput if they are asked for and not
    possible. The options token_budget and price, of a chunk, are what `choose_token_budget` finds, unless given.
    """
    with current(loaded.device):  # kernels are launched there
        parameters, on_gpu = inspect.signature(engine_class).parameters, loaded.device.type == "cuda"
        if overlap and (reason := why_no_overlap(engine_class)):
            raise InvalidInput(f"the overlapped loop was asked for, but {reason}")
        if overlap is None:
            overlap = on_gpu and why_no_overlap(engine_class) is None
        if loaded.note:  # transformers' own model: what it launches may depend on values, as in a mixture of experts
            if graphs:
                raise InvalidInput("graphs were asked for, but they record common/model.py alone: leave out --graphs")
            graphs = False
        adapters = read_adapters(parameters, loaded, loras or {})
        notes, price = [loaded.note], options.pop("price", None)
        if on_gpu:
            reserved = adapter_bytes(adapters) + 2 * ASIDE_BYTES * (tiers.host_memory is not None)
            if graphs is not False and "page_size" in parameters:
                most = options.get("max_running") or parameters["max_running"].default
                most = max(most, VERIFIED) if "draft" in parameters else most
                # "auto" may mean the bundled draft model, but that is too small to count.
                models = 1 if options.get("draft", "auto") in ("auto", "lookup") else 2
                models += 2 * bool(adapters)  # While one more is loaded, the old graphs with adapters stay.
                reserved += graph_bytes(loaded.config, loaded.dtype, most, models)
            loaded = replace(loaded, reserved_bytes=reserved)
        if "token_budget" in parameters and options.get("token_budget") is None:
            max_running = options.get("max_running") or parameters["max_running"].default
            attention = options.get("attention", "auto") if "attention" in parameters else None
            options["token_budget"], price, note = choose_token_budget(
                loaded, parameters["token_budget"].default, max_running, attention
            )
            notes.append(note)
        made = overlapped(engine_class) if overlap else engine_class
        if "graphs" in parameters:  # The engine has workers, and each makes its own graphs.
            asked = {"tiers": tiers} if tiers != NO_TIERS else {}  # A learner's own engine need not know of tiers.
            asked |= {"scheduling": scheduling} if scheduling != FIRST_COME else {}
            asked |= {"loras": loras} if loras else {}
            engine = made(loaded, graphs=graphs, price=price, **asked, **options)
            engine.adapters = adapters
            return ready(engine, notes, scheduling)
        engine = made(loaded, **options)
        holder = engine.model if overlap else engine
        if price is not None and engine.scheduler is not None:  # A learner's own may have none.
            pace(engine.scheduler, price)
        notes = [room_in_8_bits(loaded, engine), *notes, getattr(loaded.model, "products", "")]
        notes += [float32_is_faster(loaded, engine.scheduler), add_tiers(engine, tiers)]
        attention = getattr(engine.cache, "attention", None)
        if hasattr(attention, "expect"):
            attention.expect(engine.scheduler.max_running)
        warm_up(engine)
        reason = why_no_graphs(loaded.device, attention)
        if graphs and reason:
            raise InvalidInput(f"graphs were asked for, but {reason}")
        if graphs is not False and reason is None:
            before = free_bytes(loaded.device)
            sizes = add_graphs(engine, holder)
            taken = (before - free_bytes(loaded.device)) / 2**20
            notes.append(f"{counted(len(sizes), 'graph')} for up to {counted(sizes[-1], 'request')} ({taken:,.0f} MiB)")
            engine.measure()
        notes += ["overlapped loop" * overlap, add_adapters(engine, holder, adapters)]
        return ready(engine, notes, scheduling)


def ready(engine: BaseEngine, notes: list[str], scheduling: Scheduling) -> BaseEngine:
    """Return the engine with its policy, and these notes behind its own."""
    add_policy(engine, scheduling)
    engine.startup_notes = ", ".join(filter(None, [engine.startup_notes, *notes]))
    return engine


def float32_is_faster(loaded: Loaded, scheduler: object) -> str:
    """Return one line that says so, for a model in bfloat16 whose engine runs many requests on a CPU; "" otherwise.

    Some processors multiply bfloat16 no faster than float32, and convert it besides. With few requests, or in
    attention, bfloat16 is still faster, since it has half of the bytes.
    """
    if scheduler is None or loaded.dtype != torch.bfloat16 or not getattr(loaded.model, "pads", False):
        return ""
    rows = min(scheduler.max_running, MANY)
    times = slowness_of_bfloat16(loaded.model.blocks[0], rows)
    if times < MIN_GAIN:
        return ""
    return (
        f"products of {counted(rows, 'token')} take {times:.1f} times as long in bfloat16 as in float32 here: "
        "with many requests --dtype float32 is faster"
    )


def room_in_8_bits(loaded: Loaded, engine: BaseEngine) -> str:
    """Return one line that says how many tokens K and V in 8 bits leave room for; "" for those of the model's type."""
    config, cache = loaded.config, engine.cache
    if not config.kv_int8 or not hasattr(cache, "capacity"):
        return ""
    plain, rounded = (replace(config, kv_int8=int8).kv_bytes_per_token(loaded.dtype) for int8 in (False, True))
    name = str(loaded.dtype).removeprefix("torch.")
    return f"kv_dtype=int8 (room for {cache.capacity:,} tokens, {plain / rounded:.2f} times as many as in {name})"


def add_graphs(engine: BaseEngine, holder: object) -> list[int]:
    """Put graphs around holder.model, and around the draft model if there is one; return the batch sizes they have.

    holder: the engine, or the overlapped loop's own wrapper around the model.
    """
    scheduler, cache, drafter = engine.scheduler, engine.cache, engine.drafter
    drafts = scheduler.speculation.count if hasattr(scheduler, "speculation") else 0  # of one request
    sizes = ladder(max(scheduler.max_running, min(scheduler.max_running * (1 + drafts), VERIFIED)))
    most_tokens = min(engine.config.context_length, cache.capacity)
    holder.model = GraphedModel(holder.model, cache, most_tokens, sizes)
    recorded = hasattr(drafter, "cache") and isinstance(drafter.model, Transformer)
    if recorded and drafter.cache.attention.capturable:  # The passes of a draft model are decode.
        drafter.model = GraphedModel(drafter.model, drafter.cache, most_tokens, sizes, memory_of=holder.model)
    return sizes


def free_bytes(device: torch.device) -> int:
    """Return how many bytes of the GPU's memory are free; 0 on a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def overlapped(engine_class: type[BaseEngine]) -> type[BaseEngine]:
    """Return that engine with the overlapped loop in place of the plain one, and the same options."""
    options = {"__signature__": inspect.signature(engine_class)}
    return type(f"Overlapped{engine_class.__name__}", (OverlappedLoop, engine_class), options)


def why_no_overlap(engine_class: type[BaseEngine]) -> str | None:
    """Return why a stage's loop cannot be overlapped; None if `run` draws one token per request and waits for none."""
    parameters = inspect.signature(engine_class).parameters
    if "token_budget" not in parameters:
        return "it is for engines that batch continuously, as from stage 04 on"
    if "draft" in parameters:
        return "a drafter must know the last tokens to draft the next ones"
    return None
