"""What the milestones of stages 05 to 08 share: schedulers of a few small pages, and sequences made by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from .pictures import page_map
from .stage_under_test import StageUnderTest, expect, make_request


def sequence(
    stage: StageUnderTest, name: str, prompt: int | list[int], pages: Sequence[int] = (), page_size: int = 4
) -> Any:
    """Return a Sequence on these pages, of a request with this prompt: its tokens, or how many."""
    table = stage.page_table.PageTable(page_size)
    table.pages = [*pages]
    return stage.scheduler.Sequence(make_request(name, prompt), table)


def chunk(stage: StageUnderTest, sequence: Any, start: int, stop: int, **more) -> Any:
    """Return the Chunk that runs tokens `start` to `stop`, which then count as computed."""
    sequence.computed = stop
    tokens = sequence.request.token_ids_between(start, stop)
    return stage.scheduler.Chunk(sequence, start, tokens, completes=stop == sequence.request.num_tokens, **more)


def make_scheduler(
    stage: StageUnderTest, pages: int, page_size: int = 4, max_running: int = 4, budget: int = 64
) -> Any:
    """Return a scheduler with a pool of its own; where stages speculate, without draft tokens."""
    number = stage.folder.name[:2]
    more = [stage.speculation.Speculation(0)] if number >= "07" else []
    return stage.scheduler.Scheduler(max_running, budget, pages, page_size, *more)


def decoding(stage: StageUnderTest, scheduler: Any, name: str, prompt: int | list[int], most: int = 40, **more) -> Any:
    """Return a running sequence whose prompt has been run, with one token of output. more: other attributes of it."""
    request = make_request(name, prompt, most)
    sequence = stage.scheduler.Sequence(request, stage.page_table.PageTable(scheduler.allocator.page_size))
    sequence.computed = request.num_tokens
    scheduler.allocator.extend(sequence.page_table, request.num_tokens)
    for attribute, value in more.items():
        setattr(sequence, attribute, value)
    request.append(7)
    scheduler.running[name] = sequence
    return sequence


def owners(scheduler: Any) -> str:
    """Return the page map of a scheduler."""
    tables = {name: sequence.page_table for name, sequence in scheduler.running.items()}
    return owners_by_name(scheduler.allocator, tables)


def owners_by_name(allocator: Any, tables: Mapping[str, Any]) -> str:
    """Return the page map of an allocator with these page tables. From stage 06 on, T owns the tree's unused pages."""
    owners, tree = {name: table.pages for name, table in tables.items()}, getattr(allocator, "tree", None)
    if tree:
        owners["T"] = [node.page for node in tree.unused]
    return page_map(allocator.num_pages, owners, allocator.free) + "\n(T is in the tree, and unused)" * bool(tree)


def check_chunks(scheduler: Any) -> None:
    """Have a `schedule` fail that gives a request two chunks in one step, or one after its preemption."""
    schedule = scheduler.schedule

    def checked() -> list:
        chunks, seen = schedule(), set()
        for sequence in [one.sequence for one in chunks]:
            name = sequence.request.request_id
            what = f"{name} has two chunks in one step: it decodes if 1 token remains, else it is in prefill"
            expect(name not in seen, what)
            seen.add(name)
            what = f"{name}'s chunk has no pages: an older request preempted {name} in this step"
            expect(scheduler.running.get(name) is sequence, what, owners(scheduler))
        return chunks

    scheduler.schedule = checked
