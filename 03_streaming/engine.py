"""Stage 03: the engine of stage 02, line for line.

What is new stands around it: engine_thread.py runs it on a thread of its own, server.py streams what it finds, and
neither asks anything of the engine but the contract. Requests still run one at a time, and the benchmark shows what
that means for the one that comes last.
"""

import torch

from common.engine import BaseEngine
from common.loader import Loaded
from common.request import Request

from .kv_cache import KVCache


class Engine(BaseEngine):
    """One request at a time, in order of arrival; a request that has begun holds a cache of its own."""

    def __init__(self, loaded: Loaded):
        super().__init__(loaded)
        # NEW in 02: what is remembered between steps, by request id.
        self.caches: dict[str, KVCache] = {}

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """One more token for the oldest request: from its whole prompt the first time, then from its last token."""
        if not self.requests:
            return []
        request = next(iter(self.requests.values()))
        with self.trace.step() as record:
            # NEW in 02: only tokens that have not been run yet are run. Before the first step that is the prompt.
            cache = self.caches.get(request.request_id)
            if cache is None:
                phase, new_token_ids = "prefill", request.prompt_token_ids
                capacity = len(request.prompt_token_ids) + request.max_tokens
                cache = KVCache(self.config, capacity, self.device, self.dtype)
                self.caches[request.request_id] = cache
            else:
                phase, new_token_ids = "decode", request.token_ids[-1:]
            token_ids = torch.tensor(new_token_ids, device=self.device)  # [N]
            positions = torch.arange(cache.length, cache.length + len(token_ids), device=self.device)
            record.work(request.request_id, phase, len(token_ids))
            hidden = self.model(token_ids, positions, cache.attend)  # [N, hidden_size]
            cache.length += len(token_ids)
            # The model has scored the next token after every position. Only the last score is news.
            self.sample_next([request], self.model.logits(hidden[-1:]))
        return [request]

    def release(self, request: Request) -> None:
        """NEW in 02: a request that ends gives its cache back; one that never began has none."""
        self.caches.pop(request.request_id, None)

    def stats(self) -> dict[str, float]:
        return super().stats() | {
            "kv_tokens_used": sum(cache.length for cache in self.caches.values()),
            "kv_tokens_reserved": sum(cache.capacity for cache in self.caches.values()),
            "kv_bytes_reserved": sum(cache.nbytes for cache in self.caches.values()),
        }
