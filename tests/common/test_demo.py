"""What the last line of a demo says of tokens that are not the reference's."""

from types import SimpleNamespace

import pytest

from common import demo


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        ([5, 6, 7], "✓ all 3 greedy tokens"),
        ([5, 8, 7], "✗ output token 2 of one is 8, but transformers' generate gives 6"),
        ([5, 6, 7, 9], "✗ output token 4 of one is 9, but transformers' generate gives the end"),  # past an EOS
    ],
)
def test_the_first_token_that_differs_is_named(ours, says, monkeypatch, capsys):
    reference = SimpleNamespace(generate=lambda prompt, max_tokens: [5, 6, 7][:max_tokens])
    monkeypatch.setattr(demo, "Reference", lambda *_: reference)
    request = SimpleNamespace(request_id="one", prompt_token_ids=[1], token_ids=ours)
    demo.check_against_reference(SimpleNamespace(name="any", device="cpu"), [request])
    assert says in capsys.readouterr().out
