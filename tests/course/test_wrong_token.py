"""What the contract says of wrong token ids: which is the first, as text."""

from tests.helpers.wrong_token import wrong_token


def test_the_first_wrong_token_is_shown_as_text(loaded):
    ids = loaded.tokenizer(" one two three")["input_ids"]
    wrong = [*ids[:2], 99_999, *ids[3:]]
    said = wrong_token([ids, wrong], [ids, ids])
    assert said[0] == "the token ids of request 1 (of 0 to 1) differ"
    assert said[1] == f"2 tokens right: {loaded.tokenizer.decode(ids[:2])!r}"
    assert said[2] == f"then comes '' (99999), and should come {loaded.tokenizer.decode(ids[2:3])!r} ({ids[2]})"
    assert wrong_token(ids[:1], ids)[1:] == [
        f"1 token right: {loaded.tokenizer.decode(ids[:1])!r}",
        f"then comes the end, and should come {loaded.tokenizer.decode(ids[1:2])!r} ({ids[1]})",
    ]
    assert wrong_token([ids], [ids, ids]) == ["these are the token ids of 1 request, not of 2"]


def test_anything_else_is_left_to_pytest():
    assert wrong_token((1, 2), (1, 3)) is None and wrong_token("a", "b") is None and wrong_token([1.0], [2.0]) is None
