"""How long the reference's answers are, the fixture `expected`, and the parameters that ask for the same."""

from common.sampling import SamplingParams

MAX_TOKENS = 20  # a page holds 16 tokens: every answer goes on in another one
GREEDY = SamplingParams(max_tokens=MAX_TOKENS)
