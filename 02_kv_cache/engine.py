"""Stage 02: the KV cache. Run the prompt once, then one token a step.

Stage 01 runs the whole sequence again for every token, though for all tokens but the last one the result is known.
What the last token needs of the others is their keys and values, in every layer. This stage keeps them.

With that, a request has two phases that load a machine in opposite ways. Prefill runs all tokens of the prompt at
once: each weight that is read from memory is used for every token, and arithmetic is the limit. Decode runs one token:
each weight is read from memory for a single use, and memory bandwidth is the limit.

Production engines keep the same two phases and the same contents. What they change is where K and V lie (stage 05),
which requests may share them (06), and how many requests use a weight each time it is read (04).
"""

import torch

from common.engine import BaseEngine
from common.loader import Loaded
from common.request import Request
from common.sampling import SamplerOutput
from common.trace import StepRecord

from .kv_cache import KVCache


class Engine(BaseEngine):
    """One request at a time, in order of arrival; a request that has begun holds a cache of its own."""

    def __init__(self, loaded: Loaded):
        super().__init__(loaded)
        # NEW in 02: what is remembered between steps, by request id.
        self.caches: dict[str, KVCache] = {}

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Give the oldest request one more token: run its whole prompt the first time, then its last token."""
        if not self.requests:
            return []
        with self.trace.step() as record:
            request = self.schedule()
            drawn = self.run(request, record)
            return self.commit(request, drawn)

    def schedule(self) -> Request:
        """Choose the oldest request: the others wait until it has ended."""
        return next(iter(self.requests.values()))

    def run(self, request: Request, record: StepRecord) -> SamplerOutput:
        """Run the tokens of the sequence that the cache lacks through the model and draw its next token."""
        # NEW in 02: run only the tokens that have not been run yet: first the whole prompt, then one token at a time.
        if request.token_ids:
            phase, new_token_ids = "decode", request.token_ids[-1:]
        else:
            phase, new_token_ids = "prefill", request.prompt_token_ids
        cache = self.caches.get(request.request_id)
        if cache is None:
            capacity = len(request.prompt_token_ids) + request.max_tokens
            cache = self.caches[request.request_id] = KVCache(self.config, capacity, self.device, self.dtype)
        cache.length = request.num_tokens - len(new_token_ids)  # An interrupted step may have left another length.
        token_ids = torch.tensor(new_token_ids, device=self.device)  # [N]
        positions = torch.arange(cache.length, cache.length + len(token_ids), device=self.device)
        record.work(request.request_id, phase, len(token_ids))
        hidden = self.model(token_ids, positions, cache.attend)  # [N, hidden_size]
        cache.length += len(token_ids)
        # Each row predicts the token after it. Only the token after the last row is not known yet.
        return self.draw([request], self.model.logits(hidden[-1:]))

    def commit(self, request: Request, drawn: SamplerOutput) -> list[Request]:
        """Append the token to the request, and retire the request if that ends it."""
        requests = self.append_tokens([request], [[token] for token in drawn.tokens()])
        self.retire_finished(requests)
        return requests

    def release(self, request: Request) -> None:
        """NEW in 02: Give back the cache of a request that ends; one that never began has none."""
        self.caches.pop(request.request_id, None)

    def stats(self) -> dict[str, float]:
        """NEW in 02: Return how much of the caches is used and how much is reserved, in tokens and bytes."""
        caches = list(self.caches.values())  # a copy: /health asks on another thread, and a request may end
        return super().stats() | {
            "kv_tokens_used": sum(cache.length for cache in caches),
            "kv_tokens_reserved": sum(cache.capacity for cache in caches),
            "kv_bytes_reserved": sum(cache.nbytes for cache in caches),
        }
