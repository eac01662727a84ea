"""Read an engine's books between two steps: running and waiting requests, and what its memory holds.

Only this file and step_clock.py know how the stages name things; the stages do not know of them. Everything is read by
duck typing, so a learner's own stage shows what it has. Requests are told by their ids; view.py gives them numbers.

Kinds of memory: "nothing" (01), "buffers" (02, 03), "slots" (04), "pages" (05), "tree" (06), "drafts" (07),
"fleet" (08).
"""

import os
import socket
from typing import Any

from common.engine import BaseEngine


def kind_of(engine: BaseEngine) -> str:
    if hasattr(engine, "handles"):
        return "fleet"
    if allocator := getattr(engine.scheduler, "allocator", None):
        if engine.drafter:
            return "drafts"
        return "tree" if hasattr(allocator, "tree") else "pages"
    if engine.scheduler:
        return "slots"
    return "buffers" if hasattr(engine, "caches") else "nothing"


def sizes(engine: BaseEngine) -> dict[str, Any]:
    """Return what of the memory does not change while the engine lives."""
    kind, found = kind_of(engine), {"context": engine.config.context_length}
    found["bytes_per_token"] = engine.config.kv_bytes_per_token(engine.dtype)
    if kind == "fleet":
        found["workers"] = [{"number": h.number, "role": h.role} for h in engine.handles]
        return found
    if kind == "slots":
        found["slots"] = engine.scheduler.max_running
    elif kind in ("pages", "tree", "drafts"):
        found |= {"pages": engine.scheduler.allocator.num_pages, "page_size": engine.scheduler.allocator.page_size}
    return found


def queue(engine: BaseEngine) -> tuple[list[str], list[str]]:
    """Return the ids of running requests, oldest first, and of waiting ones, in the order in which they will run."""
    if hasattr(engine, "handles"):
        running = [f.request.request_id for f in engine.flights.values() if f.phase != "queued"]
    elif scheduler := engine.scheduler:
        return list(scheduler.running), [request.request_id for request in scheduler.waiting]
    else:  # one at a time, in order of arrival
        running = list(engine.requests)[:1]
    return running, [request_id for request_id in engine.requests if request_id not in running]


def memory(engine: BaseEngine) -> dict[str, Any]:
    """Return what the memory holds now, and where. `computed`: how many tokens of each request have K and V."""
    kind = kind_of(engine)
    if kind == "nothing":
        return {}
    if kind == "buffers":
        caches = engine.caches
        return {
            "computed": {request_id: cache.length for request_id, cache in caches.items()},
            "room": {request_id: cache.capacity for request_id, cache in caches.items()},
        }
    if kind == "fleet":
        return fleet(engine)
    running = engine.scheduler.running
    found: dict[str, Any] = {"computed": {name: sequence.computed for name, sequence in running.items()}}
    if kind == "slots":
        return found | {"slot": {name: sequence.slot for name, sequence in running.items()}}
    found["pages"] = {name: list(sequence.page_table.pages) for name, sequence in running.items()}
    if kind != "pages":
        found["shared"] = {name: len(sequence.page_table.path) for name, sequence in running.items()}
        tree = nodes(engine.scheduler.allocator.tree)
        found["tree"] = [[node.page, node.parent.page, node.references] for node in tree]  # The root's page is -1.
    if kind == "drafts":
        found["drafted"] = {name: sequence.draft_computed for name, sequence in running.items()}
    return found


def nodes(tree) -> list[Any]:
    """Return the nodes of the tree of cached pages, parents first."""
    found = list(tree.root.children.values())
    for node in found:
        found += node.children.values()
    return found


def fleet(router) -> dict[str, Any]:
    """Return what the router knows: where each request is, and how many pages each worker has, but not which."""
    workers = [
        {
            "up": handle.up,
            "pages": handle.hello.num_pages if handle.up else 0,
            "page_size": handle.hello.page_size if handle.up else 0,
            "free": handle.available,
            "cached": int(handle.stats.get("kv_tokens_cached", 0)) // (handle.hello.page_size if handle.up else 1),
        }
        for handle in router.handles
    ]
    flights = {}
    for flight in router.flights.values():
        places = [None if handle is None else handle.number for handle in (flight.prefill, flight.decode)]
        flights[flight.request.request_id] = [flight.phase, *places]
    return {"workers": workers, "flights": flights}


def can_pause(engine: BaseEngine) -> bool:
    """Return False for a fleet of processes: its workers have loops of their own, which go on without the router."""
    here = socket.gethostname(), os.getpid()
    return all(one.hello and (one.hello.host, one.hello.process) == here for one in getattr(engine, "handles", []))


def killable(engine: BaseEngine) -> dict[int, int]:
    """Return the processes of this machine, by worker, that can be killed to see what becomes of their streams."""
    handles = getattr(engine, "handles", [])
    here = [handle for handle in handles if handle.up and handle.hello.host == socket.gethostname()]
    return {handle.number: handle.hello.process for handle in here if handle.hello.process != os.getpid()}
