"""The demo: three questions about one long text, the tree of pages that they leave, and a conversation."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from rich.markup import escape
from rich.tree import Tree

from common.checkpoints.corpus.words import WORDS
from common.demo import Script, bar, check_against_reference, console, cut, heading, script_for, show_answers
from common.loader import Loaded, chat_prompt
from common.request import Request
from common.sampling import SamplingParams

from .engine import Engine
from .prefix_tree import Node

ENTRIES = 60  # lines of the price list
MEMORY = "512M"  # for K and V of one engine: the command's own engine has already taken what a GPU had left
WORDS_OF_LESSON = 1000
LOOK_AT = "the tokens that are cached, and the time to the first token"


def demo(engine: Engine, loaded: Loaded) -> None:
    script = script_for(loaded.name)
    requests = show_answers(engine, script)
    requests += show_shared_text(loaded, script)
    requests += show_conversation(loaded, script)
    check_against_reference(loaded, requests)


def price_list() -> dict[str, int]:
    rng = Random("demo/06")
    return {word: rng.randint(100, 999) for word in rng.sample(WORDS, ENTRIES)}


def show_shared_text(loaded: Loaded, script: Script) -> list[Request]:
    """Ask several questions behind one text: the others find what the first one has computed."""
    if not (questions := script.behind_lesson):
        prices = price_list()
        text = "\n".join(f"{thing} = {price}" for thing, price in prices.items())
        questions = [f"What is {list(prices)[i]}?" for i in (7, 31, 52)]
        prompts = [chat_prompt(loaded.tokenizer, f"{text}\n\n{question}") for question in questions]
        heading(f"A price list of {ENTRIES} lines, and three questions about it, one after another", LOOK_AT)
    else:
        text = " ".join(Path(__file__).with_name("README.md").read_text(encoding="utf-8").split()[:WORDS_OF_LESSON])
        prompts = [chat_prompt(loaded.tokenizer, question, system=text) for question in questions]
        heading(
            f"A system prompt of {WORDS_OF_LESSON} words, this lesson's, and three questions, one after another",
            LOOK_AT,
        )
    engine = Engine(loaded, kv_memory=MEMORY)
    requests = ask(engine, prompts, questions, script)
    heading("What is cached now", "the branches. A path from the top is a text, cut into pages of 16 tokens.")
    console.print(draw_tree(engine))
    return requests


def show_conversation(loaded: Loaded, script: Script) -> list[Request]:
    """Hold a conversation: each turn sends all turns before it, and finds the pages of its own answers too."""
    heading("A conversation: every turn sends everything that was said before", "the tokens that each turn runs")
    engine = Engine(loaded, kv_memory=MEMORY)
    messages, requests = [], []
    for question in script.conversation:
        messages.append({"role": "user", "content": question})
        ids = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        requests += ask(engine, [ids], [question], script)
        messages.append({"role": "assistant", "content": requests[-1].text})
    sent = [len(request.prompt_token_ids) for request in requests]
    run = [tokens - request.cached_tokens for tokens, request in zip(sent, requests, strict=True)]
    console.print(f"  Run here: {', '.join(map(str, run))} tokens. Stage 05 runs {', '.join(map(str, sent))}.")
    return requests


def ask(engine: Engine, prompts: list[list[int]], questions: Sequence[str], script: Script) -> list[Request]:
    """Run one prompt after another; print for each what was cached. Of several, compare the times to first token."""
    requests = [engine.generate([prompt], SamplingParams(max_tokens=min(300, script.longest)))[0] for prompt in prompts]
    longest = max(request.timings.time_to_first_token for request in requests)
    for request, question in zip(requests, questions, strict=True):
        seconds = request.timings.time_to_first_token
        console.print(f"  [cyan]{escape(question)}[/cyan] [green]{escape(cut(request, 66))}[/green]")
        said = f"{request.cached_tokens:>4} of {len(request.prompt_token_ids):>3} tokens cached"
        if len(requests) > 1:
            said += f", first token after {1e3 * seconds:5.1f} ms  [red]{bar(seconds, longest, 16)}[/red]"
        console.print(f"    {said}")
    return requests


def draw_tree(engine: Engine) -> Tree:
    """Draw pages that follow each other without a branch as one line: how many, and how their text ends."""
    tree = engine.scheduler.allocator.tree
    drawing = Tree(f"{tree.size} pages", guide_style="dim")
    todo = [(child, drawing) for child in tree.root.children.values()]
    while todo:
        node, branch = todo.pop(0)
        pages = [node]
        while len(pages[-1].children) == 1:
            pages += pages[-1].children.values()
        below = branch.add(describe(engine, pages))
        todo += [(child, below) for child in pages[-1].children.values()]
    return drawing


def describe(engine: Engine, pages: list[Node]) -> str:
    first, last = (engine.tokenizer.decode(node.tokens) for node in (pages[0], pages[-1]))
    text = first if len(pages) == 1 else f"{first[:24]} ... {last[-24:]}"
    count = f"{len(pages)} page{'s' * (len(pages) > 1)}"
    return f"[yellow]{count:>8}[/yellow]  [dim]{escape(' '.join(text.split()))}[/dim]"
