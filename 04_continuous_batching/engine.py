"""Stage 04: continuous batching. Many requests share every step, and each joins and leaves when it wants to.

A decode step of one request reads every weight of the model to multiply it with one vector. With 32 requests in the
step it reads them once and multiplies them with 32 vectors, in hardly more time: that is where the throughput of every
LLM server comes from. What makes it work for requests of different lengths that come and go at any time is in
scheduler.py (which requests run), batch.py (how they are laid out) and kv_cache.py (where their past is).

Production engines have the same loop. What they add: pages in place of slots (stage 05), priorities and fairness
between tenants, and the preparation of the next step while the GPU is busy with this one.
"""

import torch

from common.engine import BaseEngine
from common.errors import counted
from common.loader import Loaded
from common.memory import kv_bytes_left, parse_bytes, slots_that_fit
from common.request import Request
from common.sampling import SamplerOutput
from common.trace import StepRecord

from .batch import Batch
from .kv_cache import KVCache
from .scheduler import Chunk, Scheduler


class Engine(BaseEngine):
    """As many requests at once as there are slots.

    max_running: slots, each with room for a whole context; fewer if kv_memory holds fewer.
    token_budget: tokens of one step, of all requests together; a large one finishes prompts in fewer steps, a small one
    lets decoding requests wait less for them. kv_memory: bytes for K and V, as a number or as "512M"; None: 1 GiB on
    the CPU, on a GPU what a step leaves.
    """

    def __init__(
        self,
        loaded: Loaded,
        max_running: int = 32,
        token_budget: int = 256,
        kv_memory: int | str | None = None,
    ):
        super().__init__(loaded)
        # NEW in 04: the scheduler chooses the requests that run, and all of them share one cache.
        budget = kv_bytes_left(loaded, token_budget, max_running) if kv_memory is None else parse_bytes(kv_memory)
        slots = min(max_running, slots_that_fit(loaded, budget))
        if slots < max_running:
            self.startup_notes = f"{counted(slots, 'slot')}, all that fit into {budget / 2**20:,.0f} MiB"
        self.scheduler = Scheduler(slots, token_budget)
        self.cache = KVCache(loaded, slots)

    def accept(self, request: Request) -> None:
        """NEW in 04: Queue the request, and raise InvalidInput if it can never run."""
        self.scheduler.add(request)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Give every decoding request one more token, and run pieces of the prompts of the others."""
        if not self.requests:
            return []
        with self.trace.step() as record:
            chunks = self.schedule(record)
            drawn = self.run(chunks)
            return self.commit(chunks, drawn)

    def schedule(self, record: StepRecord) -> list[Chunk]:
        """NEW in 04: Choose tokens of many requests, as the scheduler decides, and record how many wait."""
        chunks = self.scheduler.schedule()
        for chunk in chunks:
            record.work(chunk.sequence.request.request_id, chunk.phase, len(chunk.token_ids))
        record.counters["waiting"] = len(self.scheduler.waiting)
        return chunks

    def run(self, chunks: list[Chunk]) -> SamplerOutput:
        """NEW in 04: Run all chunks in one pass of the model; draw a token for each that completes its sequence."""
        batch = Batch(chunks, self.config.num_heads // self.config.num_kv_heads, self.device, self.dtype)
        hidden = self.model(batch.token_ids, batch.positions, self.cache.bind(batch))  # [N, hidden_size]
        requests = [chunk.sequence.request for chunk in chunks if chunk.completes]
        return self.draw(requests, self.model.logits(hidden[batch.logits_rows]))

    def commit(self, chunks: list[Chunk], drawn: SamplerOutput) -> list[Request]:
        """Append a token to the request of each chunk that completes its sequence; retire those that this ends."""
        completed = [chunk.sequence.request for chunk in chunks if chunk.completes]
        requests = self.append_tokens(completed, [[token] for token in drawn.tokens()])
        self.scheduler.count_computed(chunks)
        self.retire_finished(requests)
        return requests

    def release(self, request: Request) -> None:
        """Free the request's place for the next step."""
        self.scheduler.remove(request)

    def check(self) -> None:
        """NEW in 04: Raise AssertionError if the scheduler's bookkeeping is inconsistent."""
        self.scheduler.check()

    def stats(self) -> dict[str, float]:
        """Return how many requests run and wait, and how much K and V they use and reserve, in tokens and bytes."""
        running = self.scheduler.running.values()
        reserved = len(running) * self.config.context_length
        return super().stats() | {
            "running": len(running),
            "waiting": len(self.scheduler.waiting),
            "kv_tokens_used": sum(sequence.computed for sequence in running),
            "kv_tokens_reserved": reserved,
            "kv_tokens_capacity": self.cache.capacity,
            "kv_bytes_reserved": reserved * self.config.kv_bytes_per_token(self.dtype),
        }
