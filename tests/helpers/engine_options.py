"""What many tests ask of engines: answers of a known length, and memory for a known number of pages."""

from common.sampling import SamplingParams

MAX_TOKENS = 18  # tokens of the answers in `expected`. A page holds 16 tokens, so each answer needs another page.
GREEDY = SamplingParams(max_tokens=MAX_TOKENS)
TOKEN_BYTES = 8192  # K and V of one token of the bundled model in float32


def endless(max_tokens: int | None = 40, **params) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params)


def drain(engine) -> None:
    while engine.has_unfinished:
        engine.step()


def pool(pages: int, page_size: int = 16, token_bytes: int = TOKEN_BYTES) -> dict[str, int]:
    return {"kv_memory": pages * page_size * token_bytes, "page_size": page_size}


def assert_is_answer(result: dict, request) -> None:
    """What a server says at the end of an answer of `/generate` is what the engine itself has generated."""
    assert (result["finish_reason"], result["stop_reason"]) == (request.finish_reason, request.stop_reason)
    assert result["generated_tokens"] == len(request.token_ids)
    assert result["prompt_tokens"] == len(request.prompt_token_ids)
    assert 0 < result["timings"]["time_to_first_token"] <= result["timings"]["end_to_end_latency"]
