"""The demo: the batch over time, static and continuous, and a long prompt that arrives among short ones."""

from collections.abc import Sequence
from dataclasses import replace

from rich.markup import escape

from common.demo import Script, bar, check_against_reference, console, cut, heading, script_for, show_answers
from common.engine import BaseEngine
from common.loader import Loaded, chat_prompt
from common.request import Request
from common.sampling import SamplingParams
from common.trace import Trace

from .engine import Engine
from .static_batching import StaticEngine

MEMORY = "512M"  # for K and V of one engine: the command's own engine has already taken what a GPU had left
MARKS = {
    "prefill": "[yellow]▓[/yellow]",
    "decode": "[green]█[/green]",
    "padding": "[red]░[/red]",
    "waiting": "[dim]·[/dim]",
}


def demo(engine: Engine, loaded: Loaded) -> None:
    script = script_for(loaded.name)
    requests = show_answers(engine, script)
    requests += show_batches(loaded, script)
    requests += show_long_prompt(loaded, script)
    check_against_reference(loaded, requests)


def show_batches(loaded: Loaded, script: Script) -> list[Request]:
    """Answer the same questions through half as many slots, with both ways to form a batch."""
    names, questions, slots = [*script.questions], [*script.questions.values()], script.slots
    heading(
        f"{len(questions)} questions, {slots} at a time: a row for each request, a column for each step",
        "the ░ of the first picture. They are computed and thrown away; in the second picture, others run there.",
    )
    console.print("  " + "   ".join(f"{mark} {name}" for name, mark in MARKS.items()))
    prompts = [chat_prompt(loaded.tokenizer, question) for question in questions]
    short = with_context(loaded, 512)
    engines = {
        "static: a group runs until its slowest member ends": StaticEngine(short, max_running=slots),
        "continuous: a finished request frees its slot": Engine(short, max_running=slots, kv_memory=MEMORY),
    }
    for name, engine in engines.items():
        answers = engine.generate(prompts, SamplingParams(max_tokens=40))
        console.print(f"\n  [bold]{name}[/bold]")
        draw_batch(engine.trace, names, answers)
        useful = sum(len(answer.token_ids) for answer in answers)
        console.print(f"  {useful} tokens in {engine.trace.steps} steps: {useful / engine.trace.steps:.1f} per step")
    console.print()
    for question, answer in zip(questions, answers, strict=True):
        console.print(f"  [cyan]{escape(question)}[/cyan] [green]{escape(cut(answer, 110))}[/green]")
    return answers


def with_context(loaded: Loaded, tokens: int) -> Loaded:
    """Return the model with a shorter context: a slot holds a whole one, and a real checkpoint's takes gigabytes."""
    return replace(loaded, config=replace(loaded.config, context_length=min(tokens, loaded.config.context_length)))


def draw_batch(trace: Trace, names: Sequence[str], requests: Sequence[Request]) -> None:
    """Draw a mark for what each step did for each request."""
    # Reversed, so that the first work counts: a padded prompt is drawn as a prefill.
    phases = [{work.request_id: work.phase for work in reversed(step.works)} for step in trace]
    for name, request in zip(names, requests, strict=True):
        seen = [phase.get(request.request_id) for phase in phases]
        begun = next((i for i, phase in enumerate(seen) if phase), len(seen))
        row = "".join(MARKS[phase or "waiting"] if phase or i < begun else " " for i, phase in enumerate(seen))
        console.print(f"  {name:<18}{row}", soft_wrap=True)


def show_long_prompt(loaded: Loaded, script: Script) -> list[Request]:
    """Let a prompt of 1,000 tokens arrive while one request decodes: run in one piece, and in pieces of the budget."""
    story = chat_prompt(loaded.tokenizer, script.story)
    filler = loaded.tokenizer("Passage: " + "The weather is mild. A cat sleeps on the wall. " * 90)["input_ids"]
    heading(
        f"A request writes while a prompt of {len(filler)} tokens arrives",
        "how long it waits for its next token, at most",
    )
    gaps, writers = {}, []
    for budget in (4096, 64):
        engine: BaseEngine = Engine(with_context(loaded, 1280), max_running=2, token_budget=budget, kv_memory=MEMORY)
        writer = engine.add(story, SamplingParams(max_tokens=60))
        while len(writer.token_ids) < 10:
            engine.step()
        reader = engine.add(filler, SamplingParams(max_tokens=1))
        while engine.has_unfinished:
            engine.step()
        moments = writer.timings.tokens
        gaps[budget] = 1e3 * max(after - before for before, after in zip(moments, moments[1:], strict=False))
        writers += [writer, reader]
    for name, gap in (("in one piece", gaps[4096]), ("64 tokens per step", gaps[64])):
        console.print(f"  {name:<20}{gap:6.0f} ms  [yellow]{bar(gap, gaps[4096], 40)}[/yellow]")
    return writers
