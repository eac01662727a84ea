"""Random bodies, in quantity (`--fuzz N`): each gets an answer or an error that says what is wrong."""

import json

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.serving.openai_api.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from common.serving.openai_api.responses import ResponsesBody
from tests.helpers.serving_stage_03 import wait_until

CHAT = [{"role": "user", "content": "Hi"}]
BODIES = {  # path: its fields, and a body with those that are needed
    "/v1/completions": (CompletionBody, {"prompt": "a", "max_tokens": 2}),
    "/v1/chat/completions": (ChatBody, {"messages": CHAT, "max_completion_tokens": 2}),
    "/v1/responses": (ResponsesBody, {"input": CHAT, "max_output_tokens": 2}),
    "/tokenize": (TokenizeBody, {"prompt": "a"}),
    "/detokenize": (DetokenizeBody, {"tokens": [5]}),
}
plain = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5000), st.floats(), st.text(max_size=5), st.just(2**70), st.just("\ud800")
)
keys = st.sampled_from(["role", "content", "type", "text", "x"])
scraps = st.recursive(
    plain, lambda one: st.lists(one, max_size=3) | st.dictionaries(keys, one, max_size=3), max_leaves=4
)


@pytest.mark.parametrize("path", BODIES)
def test_no_body_makes_the_server_fail(service, pytestconfig, path):
    model, needed = BODIES[path]
    names = {*(field.alias or name for name, field in model.model_fields.items()), "tools", "anything"}
    # None is the whole context, which takes its time.
    others = sorted(names - {"max_tokens", "max_completion_tokens", "max_output_tokens"})
    tries, health = pytestconfig.getoption("--fuzz") // len(BODIES), list(HealthCheck)
    with httpx.Client(base_url=service.url, timeout=60) as http:

        @settings(max_examples=tries, deadline=None, derandomize=True, suppress_health_check=health)
        @given(st.dictionaries(st.sampled_from(others), scraps, max_size=4))
        def no_failure(fields):
            answer = http.post(path, content=json.dumps(needed | fields))
            assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text)
            assert answer.status_code == 200 or answer.json()["error"]["message"]

        no_failure()
    wait_until(service.idle)
