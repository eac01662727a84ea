"""Milestones of stage 02: keys and values are kept, the prompt runs once, and then one token a step."""

from itertools import pairwise

import torch

from common.learn.milestones import milestone
from common.learn.milestones.pictures import timeline
from common.learn.milestones.stage_under_test import (
    endless,
    expect,
    expect_attention_in_steps,
    expect_rows,
    expect_stats,
    expect_tokens,
    letters,
)


def make_cache(stage, capacity: int):
    return stage.kv_cache.KVCache(stage.loaded.config, capacity, torch.device("cpu"), torch.float32)


def expect_kept(stage, *stops: int):
    """Run a sequence in steps, each up to the next of these tokens; return its cache."""
    cache = make_cache(stage, 9)

    def bind(spans):
        [(_, cache.length, _)] = spans
        return cache.attend

    steps = [[("A", *span)] for span in pairwise((0, *stops))]
    expect_attention_in_steps(stage, cache, steps, bind, lambda name, position: (slice(None), position))
    return cache


@milestone("KVCache.nbytes")
def test_what_a_cache_costs(stage):
    """K and V of 100 tokens take 2 * layers * K/V heads * 100 * head_dim * 4 bytes, filled or not.

    Hint: The cache has two tensors, and a tensor knows its size: `nbytes`.
    Second hint: self.k.nbytes + self.v.nbytes
    """
    mine, wanted = make_cache(stage, 100).nbytes, 100 * stage.token_bytes
    expect(mine == wanted, f"`nbytes` of a cache for 100 tokens is {mine!r}, not {wanted:,}")


@milestone("KVCache.attend")
def test_a_prompt_in_an_empty_cache(stage):
    """A prompt in an empty cache: its keys and values are stored, and each token sees those up to its own.

    Hint: k is [N, H_kv, D] and the cache [layers, H_kv, capacity, D]: transpose(0, 1), then write from `length` on.
    Second hint: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), on [1, heads, N, D].
    """
    cache = expect_kept(stage, 5)
    expect(cache.length == 0, "`attend` must leave `length` alone: all layers of a step begin at the same place")


@milestone("KVCache.attend")
def test_one_token_after_the_others(stage):
    """One token after the others: it is stored at place `length`, and sees everything held and itself.

    Hint: One token needs no mask. Read self.k[layer, :, :end], which includes what was just written.
    Second hint: is_causal=True with one query and many keys would show it the first key alone.
    """
    expect_kept(stage, 5, 6, 7, 8, 9)


@milestone("Engine.run")
def test_one_token_a_step(stage):
    """The prompt runs once, then each step runs one token; the tokens are those of stage 01.

    The trace calls these phases "prefill" and "decode".

    Hint: Without output (`request.token_ids`) run the whole prompt. With output: run the newest token alone.
    Second hint: Positions go on at cache.length, which grows by the tokens of the step once all layers have run.
    """
    engine, ran = stage.make_engine(), []
    request = engine.add(*stage.prompts(1, 12), endless(9))
    with engine.model.embedding.register_forward_pre_hook(lambda _, inputs: ran.append(len(inputs[0]))):
        for _ in range(8):
            engine.step()
    works = [work for step in engine.trace for work in step.works]
    picture = timeline(engine.trace, letters(engine.requests))
    noted = [work.tokens for work in works]
    expect(ran == [12] + [1] * 7, f"after a prompt of 12 tokens, one a step: the model ran {ran}", picture)
    expect(noted == ran, f"`record.work` was told of {noted} tokens, and the model ran {ran}", picture)
    expect_rows("phases in the trace", [work.phase for work in works], ["prefill"] + ["decode"] * 7)
    expect_tokens(stage, engine, [request], 8)


@milestone("Engine.release")
def test_what_ends_gives_its_cache_back(stage):
    """A request that ends, or is aborted, gives its cache back; to release one that never began is no error.

    Hint: `caches` is a dictionary by request id: take the request's entry out.
    Second hint: self.caches.pop(request.request_id, None)
    """
    engine = stage.make_engine()
    _, second, third = (engine.add(prompt, endless(3)) for prompt in stage.prompts(3, 6))
    for _ in range(3):
        engine.step()
    expect(not engine.caches, f"the first request has ended, and `caches` still has {list(engine.caches)}")
    engine.step()
    expect(list(engine.caches) == [second.request_id], f"the second has begun, and `caches` has {list(engine.caches)}")
    engine.abort(third.request_id)
    engine.abort(second.request_id)
    expect(not engine.caches, f"the others were aborted, and `caches` still has {list(engine.caches)}")


@milestone("Engine.stats")
def test_what_the_engine_reports(stage):
    """`stats` gives kv_tokens_used, what the caches hold, and kv_tokens_reserved and kv_bytes_reserved, their size.

    Hint: Sum `length`, `capacity` and `nbytes` over self.caches.values(), and keep what the base class reports.
    Second hint: super().stats() | {"kv_tokens_used": ..., "kv_tokens_reserved": ..., "kv_bytes_reserved": ...}
    """
    engine = stage.make_engine()
    for prompt in stage.prompts(2, 10):
        engine.add(prompt, endless(30))
    for _ in range(3):
        engine.step()
    wanted = {"kv_tokens_used": 10 + 2, "kv_tokens_reserved": 40, "kv_bytes_reserved": 40 * stage.token_bytes}
    wanted |= {"unfinished": 2, "steps": 3}
    expect_stats("after three steps", engine, wanted)
