"""What the last line of a demo says of tokens that are not the reference's."""

from types import SimpleNamespace

import pytest

from common import demo


def test_one_pass_finds_what_generate_gives(reference, prompts, monkeypatch):
    question = prompts[-3]
    right, beyond = (reference.generate(question, 20, ignore_eos=ignored) for ignored in (False, True))
    assert len(right) < 20 and beyond[: len(right)] == right, "it ends by itself"
    for answer in (beyond, [right[0] + 1, *right[1:]]):
        assert reference.generate_like(question, answer) == right
    monkeypatch.setattr(type(reference), "generate", None)
    assert reference.generate_like(question, right) == right


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        ([5, 6, 7], "✓ all 3 greedy tokens"),
        ([5, 8, 7], "✗ output token 2 of one is 8, but transformers' generate gives 6"),
        ([5, 6, 7, 9], "✗ output token 4 of one is 9, but transformers' generate gives the end"),  # past an EOS
    ],
)
def test_the_first_token_that_differs_is_named(ours, says, monkeypatch, capsys):
    reference = SimpleNamespace(generate_like=lambda prompt, answer: [5, 6, 7][: len(answer)])
    monkeypatch.setattr(demo, "Reference", lambda *_: reference)
    request = SimpleNamespace(request_id="one", prompt_token_ids=[1], token_ids=ours)
    demo.check_against_reference(SimpleNamespace(name="any", device="cpu"), [request])
    assert says in capsys.readouterr().out
