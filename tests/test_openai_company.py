"""What one client may do to the others: calls for many answers, the longest prompts, the most of everything."""

import httpx
import pytest
from serving_openai import openai_server
from serving_stage_03 import wait_until

from common.stages import load_engine

PROMPT = "Once upon a time"


@pytest.fixture
def engine(loaded):
    return load_engine("06")(loaded)


def post(service, path="/v1/completions", **body) -> httpx.Response:
    return httpx.post(f"{service.url}{path}", json=body, timeout=120)


# ---- Calls for many answers ----


@pytest.mark.parametrize("many", [{"prompt": [PROMPT] * 32}, {"prompt": PROMPT, "n": 32}], ids=["prompts", "choices"])
def test_the_answers_of_one_call_are_computed_together(loaded, engine, many):
    with openai_server("06", loaded, engine=engine) as service:
        answer = post(service, max_tokens=2, ignore_eos=True, **many)
        assert len(answer.json()["choices"]) == 32
    assert [len(step.works) for step in engine.trace] == [32, 32]


@pytest.mark.parametrize("last", [[5] * 5000, [4096]], ids=["too long", "no token"])
def test_a_call_is_taken_whole_or_not_at_all(loaded, engine, last):
    with openai_server("06", loaded, "--max-queue", "3", engine=engine) as service:
        for _ in range(3):  # what is refused keeps no room
            answer = post(service, prompt=[[5], [6], last], max_tokens=200, ignore_eos=True)
            assert answer.status_code == 400
        assert post(service, prompt=[[5], [6], [7]], max_tokens=1).status_code == 200
        wait_until(service.idle)
    assert engine.trace.steps == 1, "a part of a refused call was computed"
