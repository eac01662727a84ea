"""The demo: text that arrives while it is written, characters in pieces, a client that leaves, and a queue."""

import json
import threading
import time
from collections.abc import Iterator

import httpx
from rich.cells import cell_len, set_cell_size
from rich.markup import escape

from common.demo import bar, check_against_reference, console, heading, script_for, show_answers
from common.detokenizer import IncrementalDetokenizer
from common.loader import Loaded, chat_prompt
from common.sampling import SamplingParams
from common.serving.background import running

from .engine import Engine
from .engine_thread import EngineThread
from .graceful import Server
from .server import create_app


def demo(engine: Engine, loaded: Loaded) -> None:
    script = script_for(loaded.name)
    requests = show_answers(engine, script)
    prompt = chat_prompt(loaded.tokenizer, script.story)
    story = engine.generate([prompt], SamplingParams(max_tokens=script.longest))[0]
    engine.trace.clear()
    engine_thread = EngineThread(engine, max_queue=64)
    with running(Server(create_app(engine_thread), engine_thread, "127.0.0.1", 0)) as url:
        show_stream(url, prompt, script.longest)
        show_characters(url, loaded, script.characters)
        show_departure(url, engine, prompt)
        show_queue(url, prompt)
    check_against_reference(loaded, [*requests, story])


def stream(url: str, **body) -> Iterator[dict]:
    """Yield the events of one streamed answer."""
    with httpx.stream("POST", f"{url}/generate", json={"stream": True, **body}, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def show_stream(url: str, prompt: list[int], longest: int) -> None:
    heading("A story over HTTP, shown as its events arrive", "when the text begins to appear, and when it is complete")
    for _ in stream(url, prompt=prompt, max_tokens=8):
        pass  # The first request of a server is slow: it is not timed.
    started = time.perf_counter()
    arrivals = []
    for event in stream(url, prompt=prompt, max_tokens=longest):
        arrivals.append(time.perf_counter() - started)
        console.print(f"[green]{event['text']}[/green]", end="", soft_wrap=True)
    cut_off = " ..." * (event["finish_reason"] == "length")
    console.print(
        f"{cut_off}\n\n  first text after {arrivals[0] * 1e3:.0f} ms, the last after {arrivals[-1] * 1e3:.0f} ms:",
        end=" ",
    )
    console.print(f"in stage 02 the client would have waited {arrivals[-1] / arrivals[0]:.0f} times as long")


def show_characters(url: str, loaded: Loaded, text: str) -> None:
    """Print which tokens a text is made of, and when each character can be sent."""
    heading(
        "A character may take several tokens, and is sent when it is complete",
        "the columns. What is no text by itself is sent (·: not yet) with the token that completes it.",
    )
    detokenizer = IncrementalDetokenizer(loaded.tokenizer, [])
    tokens = [
        token
        for event in stream(url, prompt=chat_prompt(loaded.tokenizer, text), max_tokens=20)
        for token in event["token_ids"]
    ]
    pieces = [(loaded.tokenizer.decode([token]), detokenizer.append(token)) for token in tokens[:-1]]
    for label, colour, place in (("each token by itself", "red", 0), ("what was sent for it", "green", 1)):
        cells = (escape(set_cell_size(pair[place] or "·", max(map(cell_len, pair)))) for pair in pieces)
        console.print(f"  {label}:  [{colour}]{' '.join(cells)}[/{colour}]")


def show_departure(url: str, engine: Engine, prompt: list[int]) -> None:
    heading("A client leaves in the middle of its answer", "how many more steps the engine takes for it")
    events = stream(url, prompt=prompt, max_tokens=400)
    received = sum(len(next(events)["token_ids"]) for _ in range(10))
    events.close()
    left = engine.trace.steps
    time.sleep(0.3)
    console.print(f"  it had {received} tokens when it closed the connection;", end=" ")
    console.print(f"the engine took {engine.trace.steps - left} more steps and then had nothing to do")


def show_queue(url: str, prompt: list[int]) -> None:
    """Send four requests at once to an engine that serves one at a time."""
    heading("Four clients at once: requests still run one at a time", "the dots: that client waits")
    spans: dict[int, tuple[float, float]] = {}
    started = time.perf_counter()

    def client(number: int) -> None:
        moments = [time.perf_counter() for _ in stream(url, prompt=prompt, max_tokens=60)]
        spans[number] = moments[0] - started, moments[-1] - started

    clients = [threading.Thread(target=client, args=(number,)) for number in range(1, 5)]
    for thread in clients:
        thread.start()
        time.sleep(0.02)
    for thread in clients:
        thread.join()
    end = max(last for _, last in spans.values())
    for number, (first, last) in sorted(spans.items()):
        waiting, writing = bar(first, end, 40), bar(last - first, end, 40)
        console.print(
            f"  client {number}  [dim]{'·' * len(waiting)}[/dim][yellow]{writing}[/yellow]"
            f"  first text after {first * 1e3:.0f} ms"
        )
    console.print("  Stage 04 lets them share every step.")
