"""What each step wrote into which pages: when a wrong token is found, its request may have given its pages back."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from .pictures import rows


class Write(NamedTuple):
    """Tokens `start` to `stop` - 1 of a request, which a step wrote into its pages."""

    step: int
    request_id: str
    start: int
    stop: int
    pages: list[int]


def record_writes(engine: Any) -> None:
    """Have an engine with pages keep from now on what it writes, as `engine.writes`."""
    if hasattr(engine, "writes") or not hasattr(engine.scheduler, "allocator"):
        return
    run, engine.writes = engine.run, []

    def recorded(chunks: list) -> Any:
        drawn = run(chunks)
        for chunk in chunks:
            count = getattr(chunk, "num_tokens", len(chunk.token_ids))  # In stage 07 this includes draft tokens.
            pages = list(chunk.sequence.page_table.pages)
            write = (chunk.sequence.request.request_id, chunk.start, chunk.start + count, pages)
            engine.writes.append(Write(engine.trace.steps, *write))
        return drawn

    engine.run = recorded


def last_writes(engine: Any, request_id: str, count: int, names: Mapping[str, str]) -> tuple[str, int | None]:
    """Return the pages of a request in the step that ran its first `count` tokens, and the number of this step.

    Beneath each page is what last wrote into it; the page of the last token is marked. Nothing of an engine that does
    not keep what it writes, nor of tokens that no step has run.
    """
    last: dict[int, tuple[str, int]] = {}
    for write in getattr(engine, "writes", []):
        size, letter = engine.scheduler.allocator.page_size, names.get(write.request_id, write.request_id)
        last |= dict.fromkeys(write.pages[write.start // size : -(-write.stop // size)], (letter, write.step))
        if write.request_id == request_id and write.stop >= count:
            pages = write.pages[: -(-write.stop // size)]
            writers, steps = zip(*(last.get(page, ("?", "?")) for page in pages), strict=True)
            lines = {"tokens from": range(0, write.stop, size), f"pages of {letter}": pages}
            lines |= {"last written by": writers, "in step": steps}
            return rows(lines, (count - 1) // size) + "\n\n", write.step
    return "", None
