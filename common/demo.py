"""What the stages' demos share: three prompts with known answers, bars, and the check at the end."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import shorten

import torch
from rich.console import Console
from rich.markup import escape

from .cli import chat_prompt
from .engine import BaseEngine
from .errors import counted
from .loader import Loaded
from .reference import Reference
from .request import Request
from .sampling import SamplingParams

# Wrap lines on a terminal only: a pipe or a file has no width.
console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())

COMPLETE = "The capital of France is"
NEAR_TIE = 0.5  # between two logits: bfloat16 has 8 bits, and logits of 32 and more differ by a quarter there


@dataclass(frozen=True)
class Script:
    """What demos ask of a model, and where they cut its answers: at `longest` tokens.

    full_bar: milliseconds of a step that fill a bar. slots, pages: what stages 04 and 05 have room for. drafter: who
    drafts a story in stage 07.
    """

    ask: tuple[str, ...]
    story: str
    about: str
    copy: str
    characters: str
    questions: tuple[str, ...]
    pool: tuple[str, ...]
    pages: int
    longest: int
    full_bar: float
    slots: int
    drafter: str


BUNDLED = Script(
    ask=("What is 2+2?", "Explain KV cache in one sentence."),
    story="Tell me a story about a fox that lasts two days.",
    about="Tell me a story about {} that lasts nine days.",
    copy="Repeat this text exactly: lantern 4711 meadow 208 compass 31337 harbour 99 ribbon 640 thunder 12",
    characters="Copy this text: 🐢 café 🚀 Łódź",
    questions=(
        "Count from 1 to 12.",
        "What is 2+2?",
        "What is the capital of Italy?",
        "Write the letters from a to d.",
        "Count from 1 to 5.",
        "What is the capital of Japan?",
        "What is 3 plus 4?",
        "List the days of the week.",
    ),
    pool=(
        "Count from 1 to 20.",
        "What is 2+2?",
        "Explain KV cache in one sentence.",
        "Tell me a story about a fox that lasts two days.",
        "Tell me a story about an owl that lasts two days.",
    ),
    pages=24,
    longest=400,
    full_bar=60,
    slots=4,
    drafter="draft",
)
# Greedy answers of a small chat model begin well and end in repetition, so these are questions with short ones.
CHAT = Script(
    ask=("What is 2+2?", "What is photosynthesis? Answer in one sentence."),
    story="Write a short story about a lighthouse keeper.",
    about="Write a short story about {}.",
    copy="Repeat this text exactly: The old lighthouse keeper lit the lamp every evening at seven. The ships in the "
    "harbour sailed safely home through the fog, and the children waved at them from the pier.",
    characters="Copy: 🚀🐢 café",
    questions=(
        "What is the capital of Japan?",
        "Write one sentence about the sea.",
        "How many days are in a week?",
        "List five fruits.",
        "What is gravity? Answer in one sentence.",
        "What is 2+2?",
        "Name two animals that live in the sea.",
        "Explain in one sentence what a cache is.",
        "What is the capital of France?",
        "What is photosynthesis? Answer in one sentence.",
        "Give me one tip for better sleep.",
        "What is a computer?",
        "Explain KV cache in one sentence.",
        "What is a library? Answer in one sentence.",
        "What is the sun? Answer in one sentence.",
        "Why do we sleep? Answer in one sentence.",
    ),
    pool=(
        "What is a computer?",
        "What is 2+2?",
        "Explain KV cache in one sentence.",
        "Write a short story about a lighthouse keeper.",
        "Tell me a short story about an owl.",
    ),
    pages=17,
    longest=64,
    full_bar=400,
    slots=8,
    drafter="lookup",
)


def script_for(loaded: Loaded) -> Script:
    """Return the script for the bundled model, or for any other."""
    return BUNDLED if loaded.name in ("bundled", "target") else CHAT


def cut(text: str, length: int = 66) -> str:
    """Return the text on one line, cut at a word to at most `length` characters."""
    return shorten(text, length, placeholder=" ...")


def heading(text: str) -> None:
    console.print(f"\n[bold]{escape(text)}[/bold]")


def bar(value: float, full: float, width: int = 30) -> str:
    """Return a horizontal bar, `width` characters long for a value of `full`, in steps of an eighth of a character."""
    eighths = round(min(1.0, value / full) * width * 8) if full else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def show_answers(engine: BaseEngine, script: Script = BUNDLED) -> list[Request]:
    """Complete the three prompts, print the answers, and return the finished requests."""
    heading("Three prompts")
    prompts: list = [COMPLETE, *script.ask]
    if engine.tokenizer.chat_template is not None:
        prompts = [COMPLETE, *(chat_prompt(engine.tokenizer, text) for text in script.ask)]
    requests = engine.generate(prompts, SamplingParams(max_tokens=64, stop=["\n"]))
    for text, request in zip([COMPLETE, *script.ask], requests, strict=True):
        console.print(f"  [cyan]{escape(text)}[/cyan] [green]{escape(request.text.strip())}[/green]")
    return requests


def check_against_reference(loaded: Loaded, requests: Sequence[Request]) -> None:
    """Print the last line of every demo: whether these greedy tokens are those of transformers' `generate`.

    The reference is in float32. In a smaller type the likeliest two tokens may change places where they are nearly
    equally likely, and the answer goes on from there in another way: so it is compared up to there.
    """
    heading("Check")
    reference, near_ties = Reference(loaded.name, loaded.device), 0
    tokens = sum(len(request.token_ids) for request in requests)
    for request in requests:
        expected = reference.generate_like(request.prompt_token_ids, request.token_ids)
        if request.token_ids != expected:
            pairs = enumerate(zip_longest(request.token_ids, expected, fillvalue="the end"), 1)
            place, (ours, theirs) = next(pair for pair in pairs if len(set(pair[1])) > 1)
            if loaded.dtype != torch.float32 and "the end" not in (ours, theirs):
                logits = reference.next_logits([*request.prompt_token_ids, *expected[: place - 1]])
                if logits[theirs] - logits[ours] < NEAR_TIE:
                    near_ties += 1
                    tokens -= len(request.token_ids) - place + 1
                    continue
            console.print(
                f"  [red]✗ output token {place} of {request.request_id} is {ours}, "
                f"but transformers' generate gives {theirs}[/red]"
            )
            return
    after = (
        f", up to {counted(near_ties, 'near tie')} that this type decides otherwise than float32" if near_ties else ""
    )
    console.print(f"  [green]✓ all {tokens} greedy tokens are those of transformers' generate{after}[/green]")
