"""Load the draft model that speculates for a target (stage 07)."""

from dataclasses import replace
from functools import lru_cache

import torch

from ..errors import InvalidInput
from ..model import Transformer
from . import Loaded, load_model


def load_draft_model(name: str, target: Loaded) -> Loaded | None:
    """Return the draft model of that name; None for "lookup".

    "auto" is the bundled one for the bundled target, otherwise "lookup". Raise InvalidInput if its vocabulary is not
    the target's: it cannot draft the target's tokens.
    """
    if name == "auto":
        name = "draft" if target.name in ("bundled", "target") else "lookup"
    if name == "lookup":
        return None
    plain = type(target.model) is Transformer  # Then the draft model is plain, too.
    draft = load_once(name, target.device, target.dtype, False if plain else "auto")
    known = [vocabulary(model) for model in (draft, target)]
    if draft.config.vocab_size != target.config.vocab_size or None not in known and known[0] != known[1]:
        raise InvalidInput(
            f"the draft model {name} has another vocabulary than {target.name}, and cannot draft its tokens: "
            "give a smaller model of the same family, or --draft lookup"
        )
    return replace(draft, config=replace(draft.config, kv_int8=target.config.kv_int8))


@lru_cache(maxsize=1)
def load_once(name: str, device: torch.device, dtype: torch.dtype, fused: bool | str) -> Loaded:
    """Load a draft model, or return the one loaded last: engines of one process share it."""
    return load_model(name, device=device, dtype=dtype, fused=fused)


def vocabulary(model: Loaded) -> dict[str, int] | None:
    """Return the ids of all tokens by their text, or None without a tokenizer."""
    return model.tokenizer.get_vocab() if model.tokenizer else None
