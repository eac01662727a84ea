"""What many tests ask of engines: answers of a known length, and memory for a known number of pages."""

from common.sampling import SamplingParams

MAX_TOKENS = 18  # of the reference's answers, `expected`. A page holds 16 tokens: each answer goes on in another one
GREEDY = SamplingParams(max_tokens=MAX_TOKENS)
TOKEN_BYTES = 8192  # K and V of one token of the bundled model in float32


def endless(max_tokens: int | None = 40, **params) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params)


def drain(engine) -> None:
    while engine.has_unfinished:
        engine.step()


def pool(pages: int, page_size: int = 16) -> dict[str, int]:
    return {"kv_memory": pages * page_size * TOKEN_BYTES, "page_size": page_size}
