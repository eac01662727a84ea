"""Exercise 3 of stage 01: requests take turns."""

from common.sampling import SamplingParams
from common.stages import load_engine


def test_requests_take_turns(copy_of, loaded, prompts, expected):
    engine = load_engine(copy_of("01_naive", "engine.py", "turns.py"))(loaded)
    requests = [engine.add(prompt, SamplingParams(max_tokens=6, ignore_eos=True)) for prompt in prompts[:3]]
    for _ in range(6):
        for _ in requests:
            engine.step()
        assert len({len(request.token_ids) for request in requests}) == 1, "one request is ahead of another"
    assert not engine.has_unfinished


def test_a_late_request_is_served_at_once(copy_of, loaded, prompts):
    engine = load_engine(copy_of("01_naive", "engine.py", "turns.py"))(loaded)
    early = engine.add(prompts[0], SamplingParams(max_tokens=30, ignore_eos=True))
    for _ in range(5):
        engine.step()
    late = engine.add(prompts[1], SamplingParams(max_tokens=1))
    engine.step()
    engine.step()
    assert late.finished and not early.finished
    engine.abort(early.request_id)
