"""The demo: the page map while requests come and go, a preemption, and the memory that holds no token."""

from rich.markup import escape

from common.demo import Script, bar, check_against_reference, console, cut, heading, script_for, show_answers
from common.errors import counted
from common.loader import Loaded, chat_prompt
from common.request import Request
from common.sampling import SamplingParams

from .engine import Engine

PAGE_SIZE = 16
COLOURS = ("green", "yellow", "cyan", "magenta", "red")


def demo(engine: Engine, loaded: Loaded) -> None:
    script = script_for(loaded.name)
    requests = show_answers(engine, script)
    requests += show_pages(loaded, script)
    show_waste(engine, loaded, script)
    check_against_reference(loaded, requests)


def show_pages(loaded: Loaded, script: Script) -> list[Request]:
    """Run five requests in a pool that is too small for all of them."""
    memory = script.pages * PAGE_SIZE * loaded.config.kv_bytes_per_token(loaded.dtype)
    engine = Engine(loaded, kv_memory=memory, page_size=PAGE_SIZE)
    heading(
        f"A pool of {script.pages} pages of {PAGE_SIZE} tokens, and five requests",
        "the letters. Each is a page and names its owner; a dot is a free page.",
    )
    requests = [
        engine.add(chat_prompt(loaded.tokenizer, question), SamplingParams(max_tokens=min(260, script.longest)))
        for question in script.pool
    ]
    names = {request.request_id: letter for request, letter in zip(requests, "ABCDE", strict=True)}
    for request, colour, question in zip(requests, COLOURS, script.pool, strict=True):
        tokens = len(request.prompt_token_ids)
        console.print(f"  [{colour}]{names[request.request_id]}[/{colour}]  {escape(question)} ({tokens} tokens)")
    console.print(f"\n  step  {'pages':<{script.pages}}   running  waiting")
    seen = 0
    while engine.has_unfinished:
        engine.step()
        step = engine.trace.steps
        if engine.scheduler.preemptions > seen:
            seen = engine.scheduler.preemptions
            out = names[engine.scheduler.waiting[0].request_id]
            console.print(f"  {step:>4}  [bold]no page is free: {out}, the youngest, gives its pages back[/bold]")
        if step % script.show_every == 1 or not engine.has_unfinished:
            stats = engine.stats()
            console.print(f"  {step:>4}  {page_map(engine, names)}   {stats['running']:>7}  {stats['waiting']:>7}")
    console.print(f"\n  {counted(seen, 'preemption')}. The check below compares every token of these answers:")
    for request, colour in zip(requests, COLOURS, strict=True):
        console.print(f"  [{colour}]{names[request.request_id]}[/{colour}]  {escape(cut(request, 66))}")
    return requests


def page_map(engine: Engine, names: dict[str, str]) -> str:
    """Return a letter for each page of the pool: its owner."""
    owners = ["[dim]·[/dim]"] * engine.scheduler.allocator.num_pages
    for request_id, sequence in engine.scheduler.running.items():
        letter = names[request_id]
        colour = COLOURS["ABCDE".index(letter)]
        for page in sequence.page_table.pages:
            owners[page] = f"[{colour}]{letter}[/{colour}]"
    return "".join(owners)


def show_waste(engine: Engine, loaded: Loaded, script: Script) -> None:
    """Compare pages with a slot of full length for each request, as in stage 04."""
    heading("Memory that is reserved and holds no token", "the bars: what is wasted on average over the steps")
    engine.trace.clear()
    requests = [
        engine.add(chat_prompt(loaded.tokenizer, question), SamplingParams(max_tokens=min(200, script.longest)))
        for question in script.pool
    ]
    used = pages = slots = 0
    while engine.has_unfinished:
        engine.step()
        stats = engine.stats()
        used, pages = used + stats["kv_tokens_used"], pages + stats["kv_tokens_reserved"]
        slots += stats["running"] * loaded.config.context_length
    for name, reserved in (("slots (stage 04)", slots), ("pages (stage 05)", pages)):
        waste = 100 * (1 - used / reserved)
        console.print(f"  {name}   {waste:5.1f} %  [red]{bar(waste, 100, 40)}[/red]")
    tokens = sum(request.num_tokens for request in requests) / len(requests)
    console.print(f"  A request has {tokens:.0f} tokens here on average, and a slot has room for ", end="")
    console.print(f"{loaded.config.context_length:,}.")
