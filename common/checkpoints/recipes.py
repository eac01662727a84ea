"""How the bundled checkpoints are trained, one phase after the other. Their sizes stand in their config.json."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.toml import read_toml

from .tokenizer import CONTEXT_LENGTH


@dataclass(frozen=True)
class Phase:
    """One course of training; each begins with new optimizers and its own warm-up.

    Rows grow with the steps: short ones first, since attention over them is cheaper and since they leave out the long
    stories, so that copying is learned early. Batches are small, since on such regular text many steps teach more than
    large ones.
    """

    steps: int
    tokens_per_step: int = 2048  # or one row, if that is longer
    # (up to which share of the steps, tokens in a row)
    row_lengths: Sequence[Sequence[float]] = ((0.25, 256), (0.6, 512), (0.96, 1024), (1.0, CONTEXT_LENGTH))
    mix: str = "known"  # of documents. With "known" every token counts, with other mixes only the model's own words.
    teacher: str | None = None  # learn this checkpoint's distribution over the next token instead of the token
    # Without a norm on Q and K, larger steps saturate attention: softmax becomes one-hot and stops learning.
    peak_rate: float = 0.002  # the learning rate of both optimizers after `warmup` steps
    warmup: int = 50
    first_document: int = 0  # Phases with the same mix begin at different documents, so that none comes twice.
    mean_of: Sequence[int] = ()  # begin with the mean of what these phases ended with (Wortsman et al., 2022)


PHASES = {
    name: [Phase(**fields) for fields in phases]
    for name, phases in read_toml(Path(__file__).with_suffix(".toml")).items()
}
