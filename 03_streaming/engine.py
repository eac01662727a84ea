"""Stage 03: the engine of stage 02, line for line.

The new parts stand around it: engine_thread.py runs it on a thread of its own, and server.py streams its tokens. Both
use only the engine's contract. Requests still run one at a time, and the benchmark shows what that means for the
request that comes last.
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
        # What is remembered between steps, by request id.
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
        # Run only the tokens that have not been run yet: first the whole prompt, then one token at a time.
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
        """Give back the cache of a request that ends; one that never began has none."""
        self.caches.pop(request.request_id, None)

    def stats(self) -> dict[str, float]:
        """Return how much of the caches is used and how much is reserved, in tokens and bytes."""
        caches = list(self.caches.values())  # a copy: /health asks on another thread, and a request may end
        return super().stats() | {
            "kv_tokens_used": sum(cache.length for cache in caches),
            "kv_tokens_reserved": sum(cache.capacity for cache in caches),
            "kv_bytes_reserved": sum(cache.nbytes for cache in caches),
        }
