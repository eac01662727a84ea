"""What the demos of the stages share: three prompts with known answers, bars, and the check at the end."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from .cli import chat_prompt
from .engine import BaseEngine
from .loader import Loaded
from .reference import Reference
from .request import Request
from .sampling import SamplingParams

console = Console(highlight=False)

COMPLETE = "The capital of France is"
ASK = ("What is 2+2?", "Explain KV cache in one sentence.")


def heading(text: str) -> None:
    console.print(f"\n[bold]{escape(text)}[/bold]")


def bar(value: float, full: float, width: int = 30) -> str:
    """A horizontal bar, `width` characters long at `full`, in eighths of a character."""
    eighths = round(min(1.0, value / full) * width * 8) if full else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def show_answers(engine: BaseEngine) -> list[Request]:
    """Runs the three prompts and prints what the model says."""
    heading("Three prompts")
    prompts: list = [COMPLETE, *ASK]
    if engine.tokenizer.chat_template is not None:
        prompts = [COMPLETE, *(chat_prompt(engine.tokenizer, text) for text in ASK)]
    requests = engine.generate(prompts, SamplingParams(max_tokens=64))
    for text, request in zip([COMPLETE, *ASK], requests, strict=True):
        console.print(f"  [cyan]{escape(text)}[/cyan] [green]{escape(request.text.strip())}[/green]")
    return requests


def check_against_reference(loaded: Loaded, requests: Sequence[Request]) -> None:
    """The last line of every demo: are these greedy tokens those of transformers' `generate`?"""
    heading("Check")
    reference = Reference(loaded.name, loaded.device)
    tokens = sum(len(request.token_ids) for request in requests)
    for request in requests:
        expected = reference.generate(request.prompt_token_ids, len(request.token_ids))
        if request.token_ids != expected:
            same = next(
                i for i, pair in enumerate(zip(request.token_ids, expected, strict=False)) if len(set(pair)) > 1
            )
            console.print(
                f"  [red]✗ output token {same + 1} of {request.request_id} is {request.token_ids[same]}, "
                f"and transformers' generate has {expected[same]}[/red]"
            )
            return
    console.print(f"  [green]✓ all {tokens} greedy tokens are those of transformers' generate[/green]")
