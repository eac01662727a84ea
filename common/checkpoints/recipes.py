"""How the bundled checkpoints are trained, one phase after the other. Their sizes stand in their config.json."""

from dataclasses import dataclass

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
    row_lengths: tuple[tuple[float, int], ...] = ((0.25, 256), (0.6, 512), (0.96, 1024), (1.0, CONTEXT_LENGTH))
    mix: str = "known"  # of documents, by its name in the corpus; except of the first, the model's own words count only
    teacher: str | None = None  # learn this checkpoint's distribution over the next token instead of the token
    # Without a norm on Q and K, larger steps saturate attention: softmax becomes one-hot and stops learning.
    peak_rate: float = 0.002  # the learning rate of both optimizers after `warmup` steps
    warmup: int = 50
    first_document: int = 0  # elsewhere where an earlier phase has the same mix, so that no document comes twice
    mean_of: tuple[int, ...] = ()  # begin with the mean of what these phases ended with (Wortsman et al., 2022)


BROAD_ROWS = ((0.1, 256), (0.8, 512), (0.96, 1024), (1.0, CONTEXT_LENGTH))
LONG_ROWS = ((1.0, 2048),)
PHASES = {
    "target": (
        Phase(6400),
        Phase(12000, row_lengths=BROAD_ROWS, mix="broad", peak_rate=0.0015),
        Phase(800, row_lengths=LONG_ROWS, mix="long", peak_rate=0.001),
        Phase(1400, row_lengths=LONG_ROWS, mix="long", peak_rate=0.001, first_document=1_000_000),
        Phase(1100, row_lengths=LONG_ROWS, mix="long", peak_rate=0.0006, first_document=2_000_000, mean_of=(2, 3, 4)),
        Phase(0, mix="long", mean_of=(4, 5, 5, 5)),
    ),
    "draft": (Phase(4000), Phase(3500, row_lengths=BROAD_ROWS, mix="easy", teacher="target")),
}
