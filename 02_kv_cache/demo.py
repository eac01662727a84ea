"""The demo: prefill against decode, the bytes of the cache, and what a seed does."""

import statistics

import torch
from rich.markup import escape

from common.demo import bar, check_against_reference, console, cut, heading, script_for, show_answers
from common.loader import Loaded, chat_prompt, find_checkpoint
from common.loader.config import read_config
from common.request import Request
from common.sampling import SamplingParams

from .engine import Engine

TEMPERATURE = 0.6  # Small models' answers differ at this temperature, and still make sense.


def demo(engine: Engine, loaded: Loaded) -> None:
    script = script_for(loaded.name)
    requests = show_answers(engine, script)

    heading(
        "One story: its prompt in one step, then one token per step",
        "the column `run`. It is the whole prompt, then 1.",
    )
    prompt = chat_prompt(loaded.tokenizer, script.story)
    story = engine.add(prompt, SamplingParams(max_tokens=script.longest))
    engine.trace.clear()
    console.print(f"  token   run   remembered       time (a full bar: {script.full_bar} ms, as in stage 01)")
    while engine.has_unfinished:
        engine.step()
        step = engine.trace[-1]
        if len(story.token_ids) % 16 == 1:
            milliseconds = step.seconds * 1e3
            console.print(
                f"  {len(story.token_ids):>5}   {step.tokens:>3}   {len(story.all_token_ids) - 1 - step.tokens:>10}   "
                f"{milliseconds:5.1f} ms  [yellow]{bar(milliseconds, script.full_bar)}[/yellow]  {step.works[0].phase}"
            )
    console.print(f"\n[green]{escape(cut(story))}[/green]")
    show_phases(engine, story)
    show_bytes(engine, story)
    show_seeds(engine)
    check_against_reference(loaded, [*requests, story])


def show_phases(engine: Engine, story: Request) -> None:
    """Print the milliseconds for a token of a prompt, and for a token of an answer."""
    heading("Prefill and decode", "milliseconds per token, when many share a step and when one runs alone")
    decode = statistics.median(step.seconds for step in engine.trace if step.works[0].phase == "decode")
    engine.generate([story.all_token_ids], SamplingParams(max_tokens=1))  # the story again, now as a prompt
    prefill = engine.trace[-1]
    per_token = prefill.seconds / prefill.tokens
    console.print(f"  prefill   {per_token * 1e3:6.3f} ms per token   ({prefill.tokens} tokens in one step)")
    console.print(f"  decode    {decode * 1e3:6.3f} ms per token   (one token per step, median)")
    console.print(f"  A written token takes {decode / per_token:.0f} times as long as a token of a prompt.")


def show_bytes(engine: Engine, story: Request) -> None:
    """Print the size of the cache by formula and as allocated, and the same formula for a well-known model."""
    heading(
        "Bytes per token: 2 (K and V) x layers x K/V heads x head dimension x bytes of a number",
        "the last line. What the engine has allocated is what the formula says.",
    )
    request = engine.add(story.prompt_token_ids, SamplingParams(max_tokens=50))
    engine.step()
    stats = engine.stats()
    engine.abort(request.request_id)
    tiny_llama = read_config(find_checkpoint("TinyLlama-1.1B", with_weights=False))
    for name, config, dtype, tokens in (
        ("this model", engine.config, engine.dtype, stats["kv_tokens_reserved"]),
        ("TinyLlama-1.1B", tiny_llama, torch.float32, 50),
    ):
        per_token = config.kv_bytes_per_token(dtype)
        console.print(
            f"  {name:<15} 2 x {config.num_layers} x {config.num_kv_heads} x {config.head_dim} x {dtype.itemsize} = "
            f"{per_token:,} bytes;  for {tokens} tokens {per_token * tokens / 1e6:.2f} MB"
        )
    console.print(f"  {'':<15} allocated by this engine for {stats['kv_tokens_reserved']} tokens: ", end="")
    console.print(f"{stats['kv_bytes_reserved'] / 1e6:.2f} MB")


def show_seeds(engine: Engine) -> None:
    heading(f"Sampling at temperature {TEMPERATURE}", "the first two lines. The same seed writes the same text.")
    for seed in (1, 1, 8):
        params = SamplingParams(max_tokens=24, temperature=TEMPERATURE, seed=seed)
        [request] = engine.generate(["Once upon a time, there was"], params)
        console.print(f"  seed {seed}: Once upon a time, there was[green]{request.text}[/green] ...")
