"""What the load generator says to a server whose tokenizer is not ours: words, or random token ids.

    Workload("shared-prefix", prompt_tokens=512, shared_percent=75).conversations(64, seed=0, run=1)

A conversation is a list of `Job`s, its turns; only in "multi-turn" has it more than one. A prompt of N tokens is sent
as N common English words, which are about as many tokens to most tokenizers (1.2 times as many to the bundled one); how
many they were is what the server reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.checkpoints import corpus
from common.checkpoints.corpus.words import WORDS

from .workloads import SHORTEST, Job, corpus_jobs, fixed_length_jobs, mixed_length_jobs, random_prompt

NAMES = ("corpus", "mixed", "fixed", "shared-prefix", "multi-turn")
TOKENIZER = Path(corpus.__file__).parent.parent / "target" / "tokenizer.json"


@dataclass(frozen=True)
class Workload:
    """What is sent, whatever the model; token counts are limits where `ignore_eos` lets an answer end by itself."""

    name: str = "mixed"
    prompt_tokens: int = 256
    output_tokens: int = 128
    shared_percent: int = 50
    turns: int = 4
    ignore_eos: bool = False
    token_ids: bool = False
    vocab_size: int = 4000

    def __post_init__(self) -> None:
        if self.token_ids and self.name in ("corpus", "multi-turn"):
            raise ValueError(f"the workload {self.name} is made of text: it cannot be sent as token ids")

    @property
    def turns_each(self) -> int:
        """Return the number of requests in one conversation."""
        return self.turns if self.name == "multi-turn" else 1

    def conversations(self, requests: int, seed: int, run: int = 0) -> list[list[Job]]:
        """Return `requests` requests, or as many more as fill the last conversation.

        Runs of one seed are equally long request by request, and still no prompt of one begins as that of another
        does: no run finds its prompts in a prefix cache. (The corpus has other questions for each run, of any length.)
        """
        count = -(-requests // self.turns_each) * self.turns_each
        if self.name == "corpus":
            tokenizer, length = bundled_tokenizer(), self.output_tokens
            jobs = corpus_jobs(tokenizer, count, seed=f"{seed}/{run}", most_tokens=length, chat=False)
        else:
            jobs = [replace(job, prompt=self.rotated(job.prompt, run)) for job in self.random_jobs(count, seed)]
        jobs = [replace(job, ignore_eos=self.ignore_eos) for job in jobs]
        return [jobs[first : first + self.turns_each] for first in range(0, count, self.turns_each)]

    def rotated(self, prompt: Sequence[int], run: int) -> list[int] | str:
        """Return another prompt of that length; two that begin alike still do."""
        token_ids = [(token + run) % self.vocab_size for token in prompt]
        return token_ids if self.token_ids else " ".join(WORDS[token % len(WORDS)] for token in token_ids)

    def random_jobs(self, count: int, seed: int) -> list[Job]:
        """Return jobs whose prompts are token ids."""
        vocab, lengths = self.vocab_size, (self.prompt_tokens, self.output_tokens)
        if self.name == "mixed":
            return mixed_length_jobs(count, vocab, seed=seed, prompt_tokens=lengths[0], output_tokens=lengths[1])
        if self.name == "shared-prefix":
            shared = self.prompt_tokens * self.shared_percent // 100
            prefix = random_prompt(shared, vocab, f"{seed}/shared")
            own = fixed_length_jobs(count, self.prompt_tokens - shared, self.output_tokens, vocab, seed=seed)
            return [replace(job, prompt=prefix + job.prompt) for job in own]
        return fixed_length_jobs(count, *lengths, vocab, seed=seed)

    def describe(self) -> str:
        """Return the workload in a line, for tables and plots."""
        unit = "random token ids" if self.token_ids else "words"
        at_most = "" if self.ignore_eos else "at most "
        answer = f"answers of {at_most}{self.output_tokens} tokens"
        prompt = f"prompts of {self.prompt_tokens} {unit}"
        return {
            "corpus": f"corpus: questions of the course's corpus, answers of at most {self.output_tokens} tokens",
            "mixed": f"mixed: prompts of {SHORTEST} to {self.prompt_tokens} {unit}, "
            f"answers of {at_most}{SHORTEST} to {self.output_tokens} tokens",
            "fixed": f"fixed: {prompt}, {answer}",
            "shared-prefix": f"shared-prefix: {prompt}, the first {self.shared_percent} % of them shared, {answer}",
            "multi-turn": f"multi-turn: {self.turns} turns of {self.prompt_tokens} words, {answer}",
        }[self.name]


def bundled_tokenizer():
    """Return the bundled checkpoint's, to be called as transformers' is, which would bring in torch."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    return lambda text: {"input_ids": tokenizer.encode(text).ids}
