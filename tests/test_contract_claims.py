"""What each stage claims beyond equal tokens. The number in a folder's name counts: `my_05` claims what 05 does.

    pytest tests/test_contract.py tests/test_contract_claims.py --engine my_05

The defaults of an engine never run short of memory, and no prompt of the contract comes twice. So without these tests
an unmodified copy of stage 04 would pass as stage 05, and a preemption that raises would never be called.
"""

import pytest

from common.sampling import SamplingParams
from tests.helpers.engine_options import GREEDY

PAGE = 16  # tokens


def endless(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


@pytest.mark.claim(2)
def test_what_is_computed_is_kept(engine, prompts):
    prompt = max(prompts, key=len)
    engine.generate([prompt], endless(12))
    ran = sum(step.tokens for step in engine.trace)
    assert ran < 2 * len(prompt), f"{ran} tokens were run for a prompt of {len(prompt)} and 12 tokens"


@pytest.mark.claim(4)
def test_requests_share_steps(engine, prompts):
    engine.generate(prompts[:8], endless(12))
    assert max(len(step.works) for step in engine.trace) == 8


@pytest.mark.claim(5)
def test_memory_that_runs_short(engine_class, loaded, prompts):
    """Twelve requests that all grow, in memory for four: some must be preempted, and no token shows it.

    They grow by four pages each, so that it does not depend on how soon draft tokens let one of them end.
    """
    short = [prompt[:40] for prompt in prompts[:12]]
    engine = engine_class(loaded, kv_memory=24 * PAGE * loaded.config.kv_bytes_per_token(loaded.dtype))
    tight, roomy = (one.generate(short, endless(64)) for one in (engine, engine_class(loaded, kv_memory="256M")))
    assert [completion.token_ids for completion in tight] == [completion.token_ids for completion in roomy]
    stats = engine.stats()
    assert stats["preemptions"] > 0, "memory for four of twelve requests, and none was preempted"
    assert stats["kv_tokens_used"] == stats["kv_tokens_reserved"] == 0
    engine.check()


@pytest.mark.claim(5)
def test_a_pool_without_a_page_is_refused(engine_class, loaded):
    for memory in ("1K", 16 * 8192 - 1):
        with pytest.raises(ValueError, match="one page of 16 tokens takes 1..,... bytes, .*larger --kv-memory"):
            engine_class(loaded, kv_memory=memory)
    with pytest.raises(ValueError, match="page_size must be at least 1 token, not 0"):
        engine_class(loaded, page_size=0)


@pytest.mark.claim(6)
def test_a_prefix_is_found_again(engine, prompts):
    prompt = max(prompts, key=len)[:100]
    first, second = (engine.generate([[*prompt, token]], endless(4))[0] for token in (5, 6))
    assert (first.cached_tokens, second.cached_tokens) == (0, len(prompt) // PAGE * PAGE)
    assert engine.stats()["prefix_tokens_hit"] == second.cached_tokens


@pytest.mark.claim(7)
def test_draft_tokens_are_accepted(engine_class, loaded, prompts, expected):
    engine = engine_class(loaded, num_draft_tokens=4)
    [completion] = engine.generate([prompts[-1]], GREEDY)
    assert completion.token_ids == expected[-1]
    stats = engine.stats()
    assert 0 < stats["accepted_tokens"] <= stats["draft_tokens"]
    passes = sum(step.works[0].phase == "decode" for step in engine.trace)
    assert passes < len(expected[-1]) - 1, "draft tokens were accepted, and each pass gave one token"


@pytest.mark.claim(8)
def test_requests_are_handed_over(engine, prompts, expected):
    completions = engine.generate(prompts[:6], GREEDY)
    assert [completion.token_ids for completion in completions] == expected[:6]
    longer = sum(len(tokens) > 1 for tokens in expected[:6])
    assert engine.stats()["handoffs"] == longer, "what has more than one token goes on at a decode worker"
