"""The demo: a long prompt arrives while others decode, in one worker that does everything, and in two."""

from typing import Any

from rich.markup import escape

from common.demo import Script, bar, check_against_reference, console, heading, script_for, show_answers
from common.engine import BaseEngine
from common.loader import Loaded, chat_prompt
from common.request import Request
from common.sampling import SamplingParams

from .deployment import Engine
from .engine import WorkerEngine

HEROES = ("a fox", "a baker", "a lighthouse")
COLUMNS = 72
BEFORE, BEHIND = 0.1, 0.15  # seconds drawn before the long prompt's arrival, and after its first token
MARKS = {"token": "[green]█[/green]", "gap": "[red]·[/red]", "prefill": "[yellow]▓[/yellow]", "none": " "}
ROOM = 1800  # tokens, in each worker


def demo(engine: Engine, loaded: Loaded) -> None:
    script = script_for(loaded.name)
    requests = show_answers(engine, script)
    requests += show_arrival(loaded, script)
    check_against_reference(loaded, requests)


def show_arrival(loaded: Loaded, script: Script) -> list[Request]:
    """Show the same arrival twice, on the same cores: all of them for one worker, and half for each of two."""
    filler = loaded.tokenizer("Passage: " + "The weather is mild. A cat sleeps on the wall. " * 60)["input_ids"]
    heading(
        f"{len(HEROES)} requests decode, and a prompt of {len(filler)} tokens arrives",
        "the dots. While the prompt is computed, a request that shares its worker gets no token.",
    )
    console.print("  [green]█[/green] a token   [red]·[/red] no token   [yellow]▓[/yellow] the prompt is computed")
    with console.status("one worker does everything"):
        runs = {"together: one worker": arrive(WorkerEngine(loaded, **options_for(loaded)), loaded, script, filler)}
    with console.status("starting two processes under Ray"):
        apart = Engine(loaded, workers="ray", **options_for(loaded))
    try:
        with console.status("one worker computes prompts, another one decodes"):
            runs["apart: a prefill and a decode worker"] = arrive(apart, loaded, script, filler)
    finally:
        apart.close()
    first = {name: requests[-1].timings.time_to_first_token for name, (requests, _) in runs.items()}
    column = (BEFORE + max(first.values()) + BEHIND) / COLUMNS
    gaps = {}
    for name, (requests, phases) in runs.items():
        console.print(f"\n  [bold]{name}[/bold]; a column is {1e3 * column:.0f} ms")
        gaps[name] = draw(requests, phases, column)
    console.print()
    for name in runs:
        drawn = bar(gaps[name], max(gaps.values()), 24)
        console.print(
            f"  longest wait for a next token {1e3 * gaps[name]:5.0f} ms  [red]{drawn}[/red]  {name}", soft_wrap=True
        )
        console.print(f"  first token of the prompt     {1e3 * first[name]:5.0f} ms", highlight=False)
    bytes_per_token = loaded.config.kv_bytes_per_token(loaded.dtype)
    console.print(f"  handed over for the prompt: {len(filler) * bytes_per_token / 1e6:.1f} MB of K and V")
    (wait, wait_apart), (long, long_apart) = gaps.values(), first.values()
    console.print(
        f"  With a prefill worker the other requests wait {wait_apart / wait:.2f} times as long for a token, "
        f"and the long prompt {long_apart / long:.1f} times as long for its first."
    )
    requests = [request for requests, _ in runs.values() for request in requests]
    # Both runs have the same prompts. Where their tokens are the same too, one check is for both.
    return list({(*request.prompt_token_ids, *request.token_ids): request for request in requests}.values())


def options_for(loaded: Loaded) -> dict[str, Any]:
    """Return the options of the engines: memory for ROOM tokens, and no drafts, so that a step is a token."""
    memory = ROOM * loaded.config.kv_bytes_per_token(loaded.dtype)
    return {"kv_memory": memory, "draft": "lookup", "num_draft_tokens": 0}


def arrive(
    engine: BaseEngine, loaded: Loaded, script: Script, filler: list[int]
) -> tuple[list[Request], list[tuple[float, float]]]:
    """Return the requests, the late one last, and the spans of time in which its prompt was computed."""
    vocab = range(1000, 1000 + len(filler))
    for start in range(3):  # memory that is used for the first time is slow
        engine.generate([[(token * 7 + start) % 4000 for token in vocab]], SamplingParams(max_tokens=2))
    prompts = [chat_prompt(loaded.tokenizer, script.about.format(hero)) for hero in HEROES]
    writers = [engine.add(prompt, SamplingParams(max_tokens=96, ignore_eos=True)) for prompt in prompts]
    while min(len(writer.token_ids) for writer in writers) < 20:
        engine.step()
    reader = engine.add(filler, SamplingParams(max_tokens=8))
    while engine.has_unfinished:
        engine.step()
    phases = [
        (step.start, step.end)
        for step in engine.trace
        for work in step.works
        if work.request_id == reader.request_id and work.phase == "prefill"
    ]
    return [*writers, reader], phases


def draw(requests: list[Request], phases: list[tuple[float, float]], column: float) -> float:
    """Draw a row for each request, a column for each slice of time; return the longest gap of the decoding ones."""
    reader, names = requests[-1], [*HEROES, "the long prompt"]
    start = reader.timings.arrival - BEFORE
    longest = 0.0
    for name, request in zip(names, requests, strict=True):
        moments, row = request.timings.tokens, ""
        for place in range(COLUMNS):
            low, high = start + place * column, start + (place + 1) * column
            if any(low <= moment < high for moment in moments):
                row += MARKS["token"]
            elif request is reader and any(begun < high and low < ended for begun, ended in phases):
                row += MARKS["prefill"]
            else:
                row += MARKS["gap" if moments[0] < low < moments[-1] else "none"]
        console.print(f"  {escape(name):<16}{row}", soft_wrap=True)
        if request is not reader:
            pairs = zip(moments, moments[1:], strict=False)
            longest = max([longest, *(after - before for before, after in pairs if after > reader.timings.arrival)])
    return longest
