"""Penalties and biases: how a request changes its logits before they are sampled.

Tokens that occurred are counted again in each step: that costs time, but leaves no state to lose. vLLM and SGLang keep
the counts on the device.
"""

import math
from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from .sampling_params import Row
from .structured_output import apply_masks
from .transfers import to_device


def apply_penalties(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Make tokens that occurred before less likely (or likelier, below the neutral value), and others as asked.

    [B, V] -> [B, V]: a new tensor, float32, or the same one if no row wants that. Repetition counts prompt and
    output, as the paper that introduced it does (CTRL); presence and frequency only the output, as OpenAI's do.
    Biases, and the ban of tokens that may not end the answer yet, are applied before them, as in vLLM. After them, only
    the tokens that a structure allows keep their logits.
    """
    index = [i for i, row in enumerate(rows) if row.params.has_penalties]
    if not index:
        return apply_masks(logits, rows)
    places, logits = to_device(index, torch.int64, logits.device), logits.float()
    everyone, rows, changed = rows, [rows[i] for i in index], logits[places]  # [R, V], a copy
    for row, scores in zip(rows, changed, strict=True):
        if row.params.logit_bias:
            token_ids, biases = zip(*row.params.logit_bias, strict=True)
            token_ids = to_device(token_ids, torch.int64, scores.device)
            scores.scatter_add_(0, token_ids, to_device(biases, scores.dtype, scores.device))
        if len(row.token_ids) < row.params.min_tokens:
            forbidden = [token_id for token_id in row.params.ending_token_ids if token_id < len(scores)]
            scores.index_fill_(0, to_device(forbidden, torch.int64, scores.device), -math.inf)
    output = _places([row.token_ids for row in rows], changed)
    prompt = _places([row.prompt_token_ids if row.params.repetition_penalty != 1 else () for row in rows], changed)
    seen = torch.cat([output, prompt])
    counts = torch.zeros_like(changed).view(-1).index_add_(0, output, torch.ones_like(output, dtype=changed.dtype))
    numbers = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in (row.params for row in rows)]
    numbers = to_device(numbers, changed.dtype, changed.device)[seen // changed.shape[1]]
    repetition, frequency, presence = numbers.unbind(-1)
    # A token that occurs again is computed again, with the same result.
    scores, count = changed.view(-1)[seen], counts[seen]
    # Dividing a negative logit would make its token likelier, so such a logit is multiplied.
    scores = torch.where(scores > 0, scores / repetition, scores * repetition)
    changed.view(-1)[seen] = scores - frequency * count - presence * (count > 0)
    return apply_masks(logits.index_copy(0, places, changed), everyone)


def _places(token_ids: Sequence[Sequence[int]], like: Tensor) -> Tensor:
    """Return where the tokens of R lists stand in `like`, [R, V], if its rows are laid end to end: int64."""
    rows = [numpy.asarray(ids, dtype=numpy.int64) + i * like.shape[1] for i, ids in enumerate(token_ids)]
    return to_device(numpy.concatenate(rows), torch.int64, like.device)
