"""The demo: the sequence grows token by token, and so does the time of every step."""

from rich.markup import escape

from common.demo import bar, check_against_reference, console, cut, heading, script_for, show_answers
from common.loader import Loaded, chat_prompt
from common.sampling import SamplingParams

from .engine import Engine


def demo(engine: Engine, loaded: Loaded) -> None:
    script = script_for(loaded.name)
    requests = show_answers(engine, script)

    heading(
        "One story, and what its tokens cost", "the column `run`. Each step puts the whole sequence through the model."
    )
    prompt = chat_prompt(loaded.tokenizer, script.story)
    story = engine.add(prompt, SamplingParams(max_tokens=min(250, script.longest)))
    engine.trace.clear()
    console.print(f"  token           run        time (a full bar: {script.full_bar} ms)")
    while engine.has_unfinished:
        engine.step()
        step = engine.trace[-1]
        if len(story.token_ids) % 16 == 1:
            milliseconds = step.seconds * 1e3
            console.print(
                f"  {len(story.token_ids):>5}   {step.tokens:>4} tokens   {milliseconds:5.1f} ms  "
                f"[yellow]{bar(milliseconds, script.full_bar)}[/yellow]"
            )
    console.print(f"\n[green]{escape(cut(story))}[/green]\n", soft_wrap=False)
    run = sum(step.tokens for step in engine.trace)
    written = len(story.token_ids)
    console.print(f"  {run:,} tokens went through the model to write {written}: {run / written:.0f} for each.")
    console.print(
        "  After the first step, all but one token of each step had been through it before. Stage 02 remembers."
    )
    check_against_reference(loaded, [*requests, story])
