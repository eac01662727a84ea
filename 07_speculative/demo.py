"""The demo: which words were drafted, for a story by the draft model and for a copy by prompt lookup."""

from rich.markup import escape

from common.demo import bar, check_against_reference, console, heading, script_for, show_answers
from common.loader import Loaded, chat_prompt
from common.request import Request
from common.sampling import SamplingParams

from .engine import Engine

MEMORY = "512M"  # for K and V of one engine: the command's own engine has already taken what a GPU had left
DRAFTED, OWN = "green", "bold yellow"


def demo(engine: Engine, loaded: Loaded) -> None:
    script = script_for(loaded.name)
    requests = show_answers(engine, script)
    own = f"[{OWN}]{escape('[the model itself]')}[/{OWN}]"
    console.print(f"\n  {own} [{DRAFTED}]draft tokens, accepted[/{DRAFTED}]")
    console.print("  How many tokens are drafted depends on this machine's speed, so on another one passes differ.")
    names = {"draft": "a draft model", "lookup": "prompt lookup"}
    for question, draft in ((script.story, script.drafter), (script.copy, "lookup")):
        heading(f"{question}   ({names[draft]} drafts)", "the brackets. There is one per pass; the rest was drafted.")
        requests += compare(loaded, question, draft, script.longest)
    check_against_reference(loaded, requests)


def compare(loaded: Loaded, question: str, draft: str, longest: int) -> list[Request]:
    """Give the same answer with draft tokens and without any, as stage 06 does."""
    prompt, params = chat_prompt(loaded.tokenizer, question), SamplingParams(max_tokens=min(150, longest))
    drafting, plain = (
        Engine(loaded, kv_memory=MEMORY, **options) for options in ({"draft": draft}, {"num_draft_tokens": 0})
    )
    for engine in (drafting, plain):
        engine.generate([prompt[:-1]], SamplingParams(max_tokens=8))  # warm-up: an engine's first request is slow
    before = drafting.stats()
    request, text = run_coloured(drafting, prompt, params)
    console.print(f"  {text}\n")
    [alone] = plain.generate([prompt], params)
    stats = {name: value - before[name] for name, value in drafting.stats().items()}
    passes = stats["steps"]
    console.print(
        f"  {len(request.token_ids)} tokens in {passes:.0f} passes of the model, "
        f"{len(request.token_ids) / passes:.1f} in each; "
        f"{stats['accepted_tokens']:.0f} of {stats['draft_tokens']:.0f} draft tokens were accepted"
    )
    times = {"with drafts": request, "without": alone}
    slowest = max(one.timings.time_per_output_token for one in times.values())
    for label, one in times.items():
        seconds = one.timings.time_per_output_token
        console.print(f"  {label:<12} {1e3 * seconds:4.1f} ms per token  [red]{bar(seconds, slowest)}[/red]")
    same = request.token_ids == alone.token_ids
    console.print("  [green]✓ the same tokens[/green]" if same else "  [red]✗ other tokens[/red]")
    return [request]


def run_coloured(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[Request, str]:
    """Run a request to its end; return it, and its text, with the target's own tokens in brackets and a colour."""
    request = engine.add(prompt, params)
    coloured = ""
    while engine.has_unfinished:
        before, accepted = len(request.token_ids), engine.stats()["accepted_tokens"]
        engine.step()
        accepted = int(engine.stats()["accepted_tokens"] - accepted)
        for place, token in enumerate(request.token_ids[before:]):
            word = engine.tokenizer.decode([token], skip_special_tokens=True)
            if place < accepted or not word.strip():
                coloured += f"[{DRAFTED}]{escape(word)}[/{DRAFTED}]"
            else:
                space = word[: -len(word.lstrip())]
                coloured += f"{space}[{OWN}]{escape(f'[{word.lstrip()}]')}[/{OWN}]"
    return request, coloured.strip() + " ..." * (request.finish_reason == "length")
