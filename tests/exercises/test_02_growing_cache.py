"""Exercise 3 of stage 02: a cache that grows by doubling."""

from common.sampling import SamplingParams
from common.stages import load_engine


def test_at_most_twice_the_tokens_held_are_reserved(copy_of, loaded, reference):
    engine = load_engine(copy_of("02_kv_cache", "kv_cache.py", "growing_cache.py"))(loaded)
    prompt = loaded.tokenizer("Once upon a time, there was a fox")["input_ids"]
    request = engine.add(prompt, SamplingParams(max_tokens=300, ignore_eos=True))
    while engine.has_unfinished:
        engine.step()
        stats = engine.stats()
        assert stats["kv_tokens_used"] <= stats["kv_tokens_reserved"] <= max(64, 2 * stats["kv_tokens_used"])
    assert request.token_ids == reference.generate(prompt, 300, ignore_eos=True)


def test_a_long_prompt_fits_at_once(copy_of, loaded, reference):
    engine = load_engine(copy_of("02_kv_cache", "kv_cache.py", "growing_cache.py"))(loaded)
    prompt = loaded.tokenizer("Once upon a time, there was a fox. " * 30)["input_ids"]
    [completion] = engine.generate([prompt], SamplingParams(max_tokens=8, ignore_eos=True))
    assert completion.token_ids == reference.generate(prompt, 8, ignore_eos=True)
