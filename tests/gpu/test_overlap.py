"""The overlapped loop is a step ahead. (That it gives the tokens of the plain one, the contract suite shows.)"""

from contextlib import suppress

import pytest

from common.acceleration.accelerate import make_engine
from common.sampling import SamplerOutput, SamplingParams
from common.stages import load_engine
from tests.helpers.engine_options import drain, endless
from tests.helpers.interruptions import Interruptions


def overlapped(loaded):
    return make_engine(load_engine("06"), loaded, overlap=True, token_budget=256)  # given: not measured


def test_a_step_is_launched_before_the_last_ones_tokens_are_waited_for(loaded, prompts, monkeypatch):
    events = []
    launch, wait = SamplerOutput.__init__, SamplerOutput.tokens
    monkeypatch.setattr(
        SamplerOutput, "__init__", lambda self, *rest: (events.append("launch"), launch(self, *rest))[0]
    )
    monkeypatch.setattr(SamplerOutput, "tokens", lambda self: (events.append("wait"), wait(self))[1])
    overlapped(loaded).generate([prompts[0][:9]], endless(5))
    assert events == ["launch", *["launch", "wait"] * 4, "wait"]
    events.clear()  # Penalties need the last step's tokens first.
    overlapped(loaded).generate([prompts[0][:9]], endless(5, presence_penalty=1))
    assert events == ["launch", "wait"] * 5


@pytest.mark.parametrize("penalty", [0, 1])
def test_steps_that_are_interrupted_hide_no_token(loaded, prompts, monkeypatch, penalty):
    engine, told = overlapped(loaded), 0
    Interruptions(engine, monkeypatch)
    engine.add(prompts[0][:9], endless(8, presence_penalty=penalty))
    while engine.has_unfinished:
        with suppress(KeyboardInterrupt):
            told += len(engine.step())
    assert told == 8


def test_only_an_answer_that_ends_by_itself_costs_a_step(loaded, prompts, reference):
    def tokens_run(engine, prompt, params) -> int:
        engine.generate([prompt, [5]], [params, endless(30)])
        return sum(step.tokens for step in engine.trace) - 30

    assert tokens_run(overlapped(loaded), prompts[0][:9], endless(5)) == 9 + 4
    question = prompts[-3]  # "What is 2+2?"
    answer = reference.generate(question, 30)
    assert answer[-1] in loaded.eos_token_ids
    by_itself, greedy = len(question) + len(answer) - 1, SamplingParams(max_tokens=len(answer) + 1)
    assert tokens_run(load_engine("06")(loaded), question, greedy) == by_itself
    assert tokens_run(overlapped(loaded), question, greedy) == by_itself + 1


def test_pages_are_found_again_as_soon_as_in_the_plain_loop(loaded):
    """After a request for one token, which ends before anything is committed, and one step after a prompt."""
    once, twice = list(range(100, 200)), list(range(200, 300))
    found = []
    for engine in (load_engine("06")(loaded), overlapped(loaded)):
        requests = [*engine.generate([once], endless(1)), *engine.generate([once], endless(1))]
        for _ in range(2):
            requests.append(engine.add(twice, endless(8)))
            engine.step()
        drain(engine)
        found.append([request.cached_tokens for request in requests])
    assert found == [[0, 96, 0, 96]] * 2
