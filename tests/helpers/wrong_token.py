"""Which of two lists of token ids is wrong where, in words: a bare comparison of numbers says nothing to a learner."""

from common.bench.workloads import bundled_tokenizer
from common.errors import counted
from common.learn.milestones.pictures import first_difference


def wrong_token(found: object, wanted: object) -> list[str] | None:
    """Describe the first wrong token of token ids `[n]`, or of those of several requests; None for anything else."""
    if are_ids(found) and are_ids(wanted):
        found, wanted = [found], [wanted]
    if not all(isinstance(each, list) and all(map(are_ids, each)) for each in (found, wanted)):
        return None
    for number, (mine, right) in enumerate(zip(found, wanted, strict=False)):
        if (place := first_difference(mine, right)) is not None:
            words = [f"{text(ids[place : place + 1])!r} {ids[place : place + 1]}" for ids in (mine, right)]
            return [
                f"the token ids of request {number} (of 0 to {len(found) - 1}) differ",
                f"{counted(place, 'token')} right: {text(mine[:place])!r}",
                f"then comes {words[0]}, and should come {words[1]}".replace("'' []", "the end"),
            ]
    return None


def are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


def text(token_ids: list[int]) -> str:
    """Return the text of the ids that the vocabulary has: a broken engine may give others."""
    tokenizer = bundled_tokenizer()
    known = [token_id for token_id in token_ids if 0 <= token_id < tokenizer.get_vocab_size()]
    return tokenizer.decode(known, skip_special_tokens=False)
