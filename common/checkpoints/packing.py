"""Turns the corpus into rows of token ids for training, and says which of them count."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .corpus import document
from .tokenizer import END_OF_TEXT, MESSAGE_START


def packed_rows(
    tokenizer, seed: str, length: int, start: int, mix: str = "known", write: Callable[..., str] = document
) -> Iterator[tuple[list[int], int]]:
    """Return rows of `length + 1` token ids, each with the index of the first document it does not hold.

    A row begins with a whole document and is filled with more, each closed by END_OF_TEXT; the last is cut off.
    Documents longer than a row are left out, since their beginning alone would teach questions without answers.
    """
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    index, row = start, []
    while True:
        batch = [write(index + i, seed, mix) for i in range(64)]
        for ids in tokenizer(batch, add_special_tokens=False)["input_ids"]:
            index += 1
            if len(ids) < length:
                row += [*ids, end]
            if len(row) > length:
                yield row[: length + 1], index
                row = []


def own_tokens(tokenizer, rows: Tensor) -> Tensor:
    """Return a mask of `rows[R, S]`: true where the assistant speaks, and in documents without speakers.

    What a user types is not the model's to predict. Texts to copy are random on purpose: their loss is noise that
    would drown what their copies teach.
    """
    message, assistant, end = tokenizer.convert_tokens_to_ids([MESSAGE_START, "assistant", END_OF_TEXT])
    opens = rows == message
    says = torch.zeros_like(rows)  # 1: from here on the model's own, -1: from here on not, 0: as before
    says[rows == end] = 1
    says[opens] = -1
    says[:, :-1][opens[:, :-1] & (rows[:, 1:] == assistant)] = 1
    places = torch.arange(rows.shape[1]).expand_as(rows)
    latest = torch.where(says != 0, places, 0).cummax(dim=1).values  # where the state was last set
    return says.gather(1, latest) >= 0
