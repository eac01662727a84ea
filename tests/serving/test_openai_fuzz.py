"""Random bodies, in quantity (`--fuzz N`): each gets an answer or an error that says what is wrong."""

import json

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.serving.openai_api.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from common.serving.openai_api.responses import ResponsesBody
from tests.helpers.serving_stage_03 import wait_until

scraps = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 30), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.lists(st.one_of(st.integers(-1, 5000), st.text(max_size=3)), max_size=3), st.just(2**70), st.just("\ud800"),
)  # fmt: skip


def bodies(path: str):
    """Return a strategy for bodies: some sense in the fields that are needed, and scraps in any that there are."""
    fields = {*(field.alias or name for name, field in MODELS[path].model_fields.items()), "tools", "anything"}
    needed = {name: SENSIBLE[name] | scraps for name in sorted(fields & SENSIBLE.keys())}
    return st.fixed_dictionaries(needed, optional=dict.fromkeys(sorted(fields - SENSIBLE.keys()), scraps))


messages = st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "x"]), "content": scraps | st.just("Hi")})
SENSIBLE = {
    "prompt": st.sampled_from(["a", [5, 6], ["a", "b"], [[7]]]),
    "messages": st.lists(messages, max_size=2),
    "input": st.lists(messages | scraps, max_size=2) | st.just("Hi"),
    "max_output_tokens": st.integers(1, 3),
    "max_tokens": st.integers(0, 3),
    "tokens": st.lists(st.integers(0, 4100), max_size=4),
}
MODELS = {
    "/v1/completions": CompletionBody, "/v1/chat/completions": ChatBody, "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody, "/v1/responses": ResponsesBody,
}  # fmt: skip


@pytest.mark.parametrize("path", MODELS)
def test_no_body_makes_the_server_fail(service, pytestconfig, path):
    tries, health = pytestconfig.getoption("--fuzz") // len(MODELS), list(HealthCheck)
    with httpx.Client(base_url=service.url, timeout=60) as http:

        @settings(max_examples=tries, deadline=None, derandomize=True, suppress_health_check=health)
        @given(bodies(path))
        def no_failure(body):
            most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            if path in ("/v1/chat/completions", "/v1/responses") and not isinstance(body.get(most), int):
                body[most] = 2  # None is the whole context, which takes its time
            answer = http.post(path, content=json.dumps(body))
            assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text)
            if answer.status_code != 200:
                assert answer.json()["error"]["message"]

        no_failure()
    wait_until(service.idle)
