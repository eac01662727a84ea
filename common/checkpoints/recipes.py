"""How the bundled checkpoints are trained: sizes, and one phase after the other."""

from dataclasses import dataclass

from common.model import ModelConfig

from .tokenizer import CONTEXT_LENGTH, VOCAB_SIZE


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
    muon_lr: float = 0.002
    adam_lr: float = 0.002
    warmup: int = 50
    seed: int = 0
    first_document: int = 0  # elsewhere where an earlier phase has the same mix, so that no document comes twice
    mean_of: tuple[int, ...] = ()  # begin with the mean of what these phases ended with (Wortsman et al., 2022)


def bundled_config(layers: int, hidden: int, heads: int, kv_heads: int, mlp: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=64,
        context_length=CONTEXT_LENGTH,
        rms_norm_eps=1e-5,
        tie_embeddings=True,
    )


CONFIGS = {
    "target": bundled_config(layers=8, hidden=256, heads=4, kv_heads=2, mlp=688),
    "draft": bundled_config(layers=2, hidden=128, heads=2, kv_heads=1, mlp=344),
}
BROAD_ROWS = ((0.1, 256), (0.8, 512), (0.96, 1024), (1.0, CONTEXT_LENGTH))
LONG_ROWS = ((1.0, 2048),)
PHASES = {
    "target": (
        Phase(steps=6400),
        Phase(steps=12000, row_lengths=BROAD_ROWS, mix="broad", muon_lr=0.0015, adam_lr=0.0015),
        Phase(steps=800, row_lengths=LONG_ROWS, mix="long", muon_lr=0.001, adam_lr=0.001),
        Phase(steps=1400, row_lengths=LONG_ROWS, mix="long", muon_lr=0.001, adam_lr=0.001, first_document=1_000_000),
        Phase(
            steps=1100,
            row_lengths=LONG_ROWS,
            mix="long",
            muon_lr=0.0006,
            adam_lr=0.0006,
            first_document=2_000_000,
            mean_of=(2, 3, 4),
        ),
        Phase(steps=0, mix="long", mean_of=(4, 5, 5, 5)),
    ),
    "draft": (
        Phase(steps=4000),
        Phase(steps=3500, row_lengths=BROAD_ROWS, mix="easy", teacher="target"),
    ),
}
