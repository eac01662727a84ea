"""What each stage claims beyond equal tokens. The number in a folder's name counts: `my_05` claims what 05 does.

    pytest tests/test_contract.py tests/test_contract_claims.py --engine my_05

The defaults of an engine never run short of memory, and no prompt of the contract comes twice. So without these tests
an unmodified copy of stage 04 would pass as stage 05, and a preemption that raises would never be called.
"""

import pytest

from common.stages import load_engine
from tests.helpers.engine_options import GREEDY, endless, pool

PAGE = 16  # tokens


@pytest.mark.claim(2)
def test_what_is_computed_is_kept(engine, prompts):
    prompt = max(prompts, key=len)
    engine.generate([prompt], endless(12))
    ran = sum(step.tokens for step in engine.trace)
    assert ran < 2 * len(prompt), f"{ran} tokens were run for a prompt of {len(prompt)} and 12 tokens"


@pytest.mark.claim(4)
def test_requests_share_steps(engine, prompts):
    engine.generate(prompts[:8], endless(40))
    assert max(len(step.works) for step in engine.trace) == 8


@pytest.fixture(scope="session")
def growing(loaded, prompts) -> list:
    """Eight completions of two to five pages each, every other one sampled with a seed; stage 04 has no pages.

    They are so long that it does not depend on how soon draft tokens let one of them end.
    """
    each = [endless(28, temperature=float(i % 2), seed=i) for i in range(8)]
    return load_engine("04")(loaded, token_budget=256).generate([prompt[:40] for prompt in prompts[:8]], each)


@pytest.mark.claim(5)
def test_memory_that_runs_short(engine_class, loaded, growing):
    """Eight requests that all grow, in memory for two: some must be preempted, and no token or character shows it.

    The second time they come in reverse order: what is kept in a cache is hit by the first of them, and then evicted.
    """
    engine = engine_class(loaded, **pool(20, page_size=7, token_bytes=loaded.config.kv_bytes_per_token(loaded.dtype)))
    for requests in (growing, growing[::-1]):
        completions = engine.generate([one.prompt_token_ids for one in requests], [one.params for one in requests])
        assert [completion.token_ids for completion in completions] == [one.token_ids for one in requests]
        assert [completion.text for completion in completions] == [one.text for one in requests]
        engine.check()
    stats = engine.stats()
    assert stats["preemptions"] > 0, "memory for two of eight requests, and none was preempted"
    assert stats.get("prefix_tokens_hit", 1), "nothing of the first time was found in the second"
    assert stats["kv_tokens_used"] == stats["kv_tokens_reserved"] == 0


@pytest.mark.claim(6)
def test_a_prefix_is_found_again(engine_class, loaded, prompts):
    """All tokens count as asked, also a prompt's last one that runs alone."""
    engine, prompt = engine_class(loaded, token_budget=64), max(prompts, key=len)[: 4 * PAGE]
    first, second = (engine.generate([[*prompt, token]], endless(4))[0] for token in (5, 6))
    assert (first.cached_tokens, second.cached_tokens) == (0, 4 * PAGE)
    stats = engine.stats()
    assert (stats["prefix_tokens_asked"], stats["prefix_tokens_hit"]) == (2 * (4 * PAGE + 1), 4 * PAGE)


@pytest.mark.claim(7)
@pytest.mark.parametrize("draft", ["auto", "lookup"])
def test_draft_tokens_are_accepted(engine_class, loaded, prompts, expected, draft):
    engine = engine_class(loaded, draft=draft, num_draft_tokens=4)
    assert [completion.token_ids for completion in engine.generate(prompts[-6:], GREEDY)] == expected[-6:]
    stats = engine.stats()
    assert 0 < stats["accepted_tokens"] <= stats["draft_tokens"]
    passes = sum(work.phase == "decode" for step in engine.trace for work in step.works)
    decoded = sum(len(tokens) - 1 for tokens in expected[-6:])
    assert passes < decoded, "draft tokens were accepted, and each pass gave one token"


@pytest.mark.claim(8)
def test_requests_are_handed_over(engine, prompts, expected):
    completions = engine.generate(prompts[:6], GREEDY)
    assert [completion.token_ids for completion in completions] == expected[:6]
    longer = sum(len(tokens) > 1 for tokens in expected[:6])
    assert engine.stats()["handoffs"] == longer, "what has more than one token goes on at a decode worker"
