"""What the stages' demos share: three prompts with known answers, bars, and the check at the end."""

import re
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten
from types import SimpleNamespace

import torch
from rich.console import Console
from rich.markup import escape

from .engine import BaseEngine
from .errors import counted
from .loader import Loaded, chat_prompt
from .reference import Reference
from .request import Request
from .sampling import SamplingParams
from .toml import read_toml

# Wrap lines on a terminal only: a pipe or a file has no width.
console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())

COMPLETE = "The capital of France is"
NEAR_TIE = 0.5  # between two logits: bfloat16 has 8 significant bits, so from 32 on its steps are 0.25 and more


class Script(SimpleNamespace):
    """What demos ask of a model, and where they cut its answers: the fields of a table in demo.toml."""


SCRIPTS = Path(__file__).with_suffix(".toml")


def script_for(name: str) -> Script:
    """Return the script for the bundled model, or for any other."""
    return Script(**read_toml(SCRIPTS)["bundled" if name in ("bundled", "target") else "chat"])


def cut(request: Request, length: int | None = None) -> str:
    """Return an answer, cut at a word where it ran out of tokens. length: at most this many characters, on one line."""
    cut_off = request.finish_reason == "length"
    text = re.sub(r"\s+\S*$", "", request.text) + " ..." if cut_off else request.text
    return shorten(text, length, placeholder=" ...") if length else text


def heading(text: str, look_at: str = "") -> None:
    """Print what comes next, and what to look at there."""
    console.print(f"\n[bold]{escape(text)}[/bold]")
    if look_at:
        console.print(f"  [italic]Look at: {escape(look_at)}[/italic]")


def bar(value: float, full: float, width: int = 30) -> str:
    """Return a horizontal bar, `width` characters long for a value of `full`, in steps of an eighth of a character."""
    eighths = round(min(1.0, value / full) * width * 8) if full else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def show_answers(engine: BaseEngine, script: Script) -> list[Request]:
    """Complete the three prompts, print the answers, and return the finished requests."""
    heading("Three prompts")
    prompts: list = [COMPLETE, *script.ask]
    if engine.tokenizer.chat_template is not None:
        prompts = [COMPLETE, *(chat_prompt(engine.tokenizer, text) for text in script.ask)]
    requests = engine.generate(prompts, SamplingParams(max_tokens=64, stop=["\n"]))
    for text, request in zip([COMPLETE, *script.ask], requests, strict=True):
        console.print(f"  [cyan]{escape(text)}[/cyan] [green]{escape(cut(request).strip())}[/green]")
    return requests


def check_against_reference(loaded: Loaded, requests: Sequence[Request]) -> None:
    """Print the last line of every demo: whether these greedy tokens are those of transformers' `generate`.

    The reference is in float32. In a smaller type, even of K and V alone, the two likeliest tokens may change places
    where they are nearly equally likely. From there on the answers differ, so they are compared only up to that
    token.
    """
    heading("Check")
    reference, near_ties = Reference(loaded.name, loaded.device), 0
    tokens = sum(len(request.token_ids) for request in requests)
    for request in requests:
        expected = reference.generate_like(request.prompt_token_ids, request.token_ids)
        if request.token_ids != expected:
            pairs = enumerate(zip_longest(request.token_ids, expected, fillvalue="the end"), 1)
            place, (ours, theirs) = next(pair for pair in pairs if len(set(pair[1])) > 1)
            if loaded.kv_dtype != torch.float32 and "the end" not in (ours, theirs):
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
