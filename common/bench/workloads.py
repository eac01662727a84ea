"""The requests that benchmarks send: the same for every side and every repeat, because they are seeded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from common.checkpoints.corpus import facts, passages, stories, terms
from common.checkpoints.corpus.words import WORDS
from common.stages import stage_folders

# Questions and answers by length: facts of about 10 tokens, terms of 30, passages of 5 to 100, stories of 100 to 1000.
TOPICS = {
    "facts": facts.exchange,
    "terms": terms.exchange,
    "passages": passages.exchange,
    "stories": stories.request,  # of one to twelve days
}
SHORTEST = 16  # tokens, of prompts and outputs of mixed lengths
WORKLOADS = ("mixed", "shared-prefix", "corpus")  # Prompts are words, for servers with any tokenizer.


@dataclass(frozen=True)
class Job:
    """One request of a workload; greedy, unless `sampling` has other fields of `SamplingParams`.

    With `ignore_eos` it gives exactly `max_tokens` tokens.
    """

    prompt: str | list[int]
    max_tokens: int
    ignore_eos: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)


def corpus_jobs(
    tokenizer,
    count: int,
    *,
    seed: int | str = 0,
    most_tokens: int = 512,
    topics: Sequence[str] = tuple(TOPICS),
    chat: bool = True,
    ignore_eos: bool = True,
) -> list[Job]:
    """Return questions as users ask them, with outputs as long as the right answers, up to `most_tokens`.

    By default each job runs to that length whatever the model says: the variety of lengths is then known, and the
    same for every model. With ignore_eos=False the length is a limit, and the model ends its answer itself.
    chat: prompts are token ids in the chat template; False: raw text. A model without a tokenizer (a bundled config)
    gets the bundled checkpoint's token ids: timing asks only how many there are.
    """
    rng = Random(f"corpus/{seed}")
    if tokenizer is None:  # imported here: it brings torch, which a client that only sends requests does not need
        from common.loader import find_checkpoint, load_tokenizer

        tokenizer = load_tokenizer(find_checkpoint(None, with_weights=True))
    templated = chat and tokenizer.chat_template is not None
    if templated:
        from common.loader import chat_prompt
    jobs = []
    for _ in range(count):
        question, answer = TOPICS[rng.choice(topics)](rng)
        length = len(tokenizer(answer)["input_ids"]) + 1  # the end-of-sequence token
        prompt = chat_prompt(tokenizer, question) if templated else question
        jobs.append(Job(prompt, min(length, most_tokens), ignore_eos))
    return jobs


def mixed_length_jobs(
    count: int = 64,
    vocab_size: int = 4096,
    *,
    seed: int = 0,
    prompt_tokens: int = 256,
    output_tokens: int = 128,
) -> list[Job]:
    """Return random prompts of 16 to `prompt_tokens` and outputs of 16 to `output_tokens`, each length equally often.

    Where the longest is less than 16, all are that long.
    """
    rng, last = Random(seed), min(3999, vocab_size - 1)

    def length(longest: int) -> int:
        return rng.randint(min(SHORTEST, longest), longest)

    prompts = [[rng.randint(2, last) for _ in range(length(prompt_tokens))] for _ in range(count)]
    return [Job(prompt, length(output_tokens)) for prompt in prompts]


def mixed_lengths(prompt_tokens: int = 256, output_tokens: int = 128) -> str:
    """Say how long the requests of `mixed_length_jobs` are."""
    prompts, outputs = (f"{min(SHORTEST, most)} to {most}" for most in (prompt_tokens, output_tokens))
    return f"prompts of {prompts} and outputs of {outputs} tokens"


def mixed_pages(model, count: int, **longest: int) -> list[Job]:
    """Return requests of the lengths of `mixed_length_jobs`, whose prompts are pieces of the lessons' pages."""
    jobs = mixed_length_jobs(count, **longest)
    return [replace(job, prompt=page_prompt(model, len(job.prompt), f"mixed {i}")) for i, job in enumerate(jobs)]


def page_prompt(model, tokens: int, seed: int | str = 0) -> list[int]:
    """Return the ids of `tokens` tokens of real text: the seed as a heading, then a piece of the lessons' pages.

    model: an engine, or what `load_model` returns; without a tokenizer it gets random ids. By their headings no two
    prompts share a page of 16 tokens.
    """
    if model.tokenizer is None:
        return random_prompt(tokens, model.config.vocab_size, seed)
    heading, text = model.tokenizer(f"{seed}: ")["input_ids"], page_tokens(model.tokenizer)
    start = Random(f"page/{seed}").randrange(len(text))
    return (heading + list(islice(cycle(text), start, start + tokens)))[:tokens]


@cache
def page_tokens(tokenizer) -> list[int]:
    """Return the token ids of all lessons' pages, one after another."""
    pages = "\n".join((folder / "README.md").read_text(encoding="utf-8") for folder in stage_folders())
    return tokenizer(pages, verbose=False)["input_ids"]  # Otherwise it warns that this exceeds the context.


def random_prompt(tokens: int, vocab_size: int, seed: int | str) -> list[int]:
    """Return token ids without a meaning, for when only their number matters."""
    rng = Random(f"prompt/{seed}")
    return [rng.randrange(vocab_size) for _ in range(tokens)]


@cache
def bundled_tokenizer():
    """Return the bundled checkpoints' tokenizer without transformers, which would bring in torch."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(Path(facts.__file__).parents[1] / "target" / "tokenizer.json"))


def worded_jobs(
    workload: str,
    count: int,
    prompt_tokens: int,
    output_tokens: int,
    *,
    seed: int = 0,
    number: int = 0,
    ignore_eos: bool = False,
) -> list[Job]:
    """Return requests of one of WORKLOADS, for run `number`, whose prompts are text.

    Request number i has the same lengths in all runs of one seed. But no prompt begins like one of another run: no
    run finds its prompts in a prefix cache. (The corpus has other questions for each run, of any length.)
    """
    if workload == "corpus":
        options = {"seed": f"{seed}/{number}", "most_tokens": output_tokens, "chat": False, "ignore_eos": ignore_eos}
        return corpus_jobs(lambda text: {"input_ids": bundled_tokenizer().encode(text).ids}, count, **options)
    own = prompt_tokens if workload == "mixed" else prompt_tokens - prompt_tokens // 2
    shared = random_prompt(prompt_tokens - own, len(WORDS), f"{seed}/shared")
    jobs = mixed_length_jobs(count, len(WORDS), seed=seed, prompt_tokens=own, output_tokens=output_tokens)

    def words(job: Job) -> str:
        return " ".join(WORDS[(token + number) % len(WORDS)] for token in shared + job.prompt)

    return [replace(job, prompt=words(job), ignore_eos=ignore_eos) for job in jobs]
