"""What a client of stage 03 gets: its own text, the same streamed or not, and each piece when it is certain."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers.engine_options import assert_is_answer
from tests.helpers.serving_stage_03 import SteppingEngine, engine_module, serving, wait_until

pytestmark = pytest.mark.usefixtures("apart")
STORY = "Once upon a time, there was"


@pytest.fixture(scope="module")
def service(loaded, apart):
    with serving(engine_module.Engine(loaded)) as service:
        yield service


def check_answers(service, expect, prompt=STORY, **params) -> None:
    """The same request streamed and unstreamed, against what the engine itself generates."""
    completion = expect(prompt, **params)
    answer, events = service.post(prompt=prompt, **params), service.stream(prompt=prompt, **params)
    assert answer.status_code == 200
    assert len({event["id"] for event in events}) == 1
    assert "".join(event["text"] for event in events) == answer.json()["text"] == completion.text
    assert [token for event in events for token in event["token_ids"]] == completion.token_ids
    for result in (answer.json(), events[-1]):
        assert_is_answer(result, completion)


def test_streamed_is_unstreamed_is_generated(service, expect, prompts):
    for i in (0, 7, -3, -2):
        check_answers(service, expect, prompts[i], max_tokens=20)
    for params in (
        {"max_tokens": 12, "temperature": 1.5, "seed": 7, "ignore_eos": True},  # writes broken characters, too
        {"max_tokens": 3, "logprobs": 2},
    ):
        check_answers(service, expect, **params)


@pytest.mark.parametrize("keep", [False, True])
def test_stop_strings_that_span_tokens(service, expect, keep):
    full = expect(STORY, max_tokens=24, ignore_eos=True).text
    for stop in ([full[9:16]], [full[20:23], full[12:30]], [full[9:16] + "but no", full[-3:] + "but no"], full[0]):
        params = {"max_tokens": 24, "ignore_eos": True, "stop": stop, "include_stop_str_in_output": keep}
        check_answers(service, expect, **params)


def test_text_arrives_while_the_engine_computes(loaded):
    engine = SteppingEngine(loaded)
    with serving(engine) as service, ThreadPoolExecutor() as pool:
        arrived = []
        body = {"prompt": STORY, "max_tokens": 12, "ignore_eos": True}
        client = pool.submit(lambda: [arrived.append(event["text"]) for event in service.events(**body)])
        requests = service.thread.engine.requests  # those with a text, wherever the engine is
        wait_until(lambda: requests)
        [request] = requests.values()
        for steps in range(1, 12):
            engine.allow(1)
            wait_until(lambda steps=steps: len(request.token_ids) == steps)
            wait_until(lambda: "".join(arrived) == request.text)
        assert not request.finished
        engine.allow()
        client.result()
        assert "".join(arrived) == request.text
