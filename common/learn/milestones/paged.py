"""What the milestones of stages 05 to 08 share: schedulers of a few small pages, and sequences made by hand."""

from typing import Any

from .pictures import page_map
from .stage_under_test import StageUnderTest, expect, make_request


def sequence(stage: StageUnderTest, name: str, tokens: int, pages: list[int]) -> Any:
    """Return a Sequence on these pages of 4 tokens, of a request whose prompt has `tokens` tokens."""
    table = stage.page_table.PageTable(4)
    table.pages = pages
    return stage.scheduler.Sequence(make_request(name, tokens), table)


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
    tables = {name: sequence.page_table.pages for name, sequence in scheduler.running.items()}
    return page_map(scheduler.allocator.num_pages, tables, scheduler.allocator.free)


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


def bound_preemption(scheduler: Any) -> None:
    """Have a `preempt` fail that makes no room: `_extend` would call it forever."""
    preempt = scheduler.preempt

    def bounded() -> None:
        before, running = owners(scheduler), len(scheduler.running)
        preempt()
        picture = f"before\n{before}\nafter `preempt`\n{owners(scheduler)}"
        made_room = len(scheduler.running) < running and scheduler.allocator.free
        expect(made_room, "`preempt` must take a request out of `running` and free its pages", picture)

    scheduler.preempt = bounded
