"""Stage 06: prefix caching. Requests that begin alike share the pages of their beginning, now and later.

A system prompt, a few examples, the conversation so far: most of what a server receives it has received before. K and V
of a token depend only on the tokens up to it, so what has been computed for one request serves every other one with the
same beginning. prefix_tree.py keeps full pages in a tree, where scheduler.py finds them; when memory runs out, it gives
up the least recently used.

Production engines have just this. What they add: a router that sends a request where its prefix lies, and copies of
pages in the host's memory and on disk.
"""

import torch

from common.attention import choose_attention
from common.engine import BaseEngine
from common.loader import Loaded
from common.memory import kv_bytes_left, pages_that_fit, parse_bytes
from common.request import Request
from common.sampling import SamplerOutput
from common.trace import StepRecord

from .batch import Batch
from .kv_cache import KVCache
from .scheduler import Chunk, Scheduler


class Engine(BaseEngine):
    """As many requests at once as there are pages for their tokens, up to `max_running`.

    token_budget: tokens of one step, of all requests together; a large one finishes prompts in fewer steps, a small one
    lets decoding requests wait less for them. kv_memory: bytes for K and V, as a number or as "512M"; None: 1 GiB on
    the CPU, on a GPU what a step leaves. page_size: tokens in a page. attention: a backend of common.attention.
    """

    def __init__(
        self,
        loaded: Loaded,
        max_running: int = 64,  # twice the 32 of stage 04, since pages leave room for more requests
        token_budget: int = 256,
        kv_memory: int | str | None = None,
        page_size: int = 16,
        attention: str = "auto",
    ):
        super().__init__(loaded)
        head_dim = self.config.head_dim
        backend, self.startup_notes = choose_attention(attention, self.device, self.dtype, head_dim)
        # Memory is counted in pages.
        budget = kv_bytes_left(loaded, token_budget, max_running) if kv_memory is None else parse_bytes(kv_memory)
        num_pages = pages_that_fit(budget, page_size, self.config.kv_bytes_per_token(self.dtype))
        self.cache = KVCache(loaded, num_pages, page_size, backend)  # first: it may raise MemoryError
        self.scheduler = Scheduler(max_running, token_budget, num_pages, page_size)

    @property
    def max_model_len(self) -> int:
        """Return the most tokens of a request: the context, or what all pages hold."""
        return min(self.config.context_length, self.cache.capacity)

    def accept(self, request: Request) -> None:
        """Queue the request, and raise InvalidInput if it can never run."""
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
        """Choose tokens of many requests, as the scheduler decides, and record how many wait."""
        chunks = self.scheduler.schedule()
        for chunk in chunks:
            record.work(chunk.sequence.request.request_id, chunk.phase, len(chunk.token_ids))
        record.counters["waiting"] = len(self.scheduler.waiting)
        # Both count since the start.
        record.counters["preemptions"] = self.scheduler.preemptions
        record.counters["tokens_hit"] = self.scheduler.tokens_hit  # NEW in 06
        return chunks

    def run(self, chunks: list[Chunk]) -> SamplerOutput:
        """Run all chunks in one pass of the model; draw a token for each that completes its sequence."""
        batch = Batch(chunks, self.device)
        hidden = self.model(batch.token_ids, batch.positions, self.cache.bind(batch.paged))  # [N, hidden_size]
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
        """Raise AssertionError if the scheduler's bookkeeping is inconsistent."""
        self.scheduler.check()

    def stats(self) -> dict[str, float]:
        """Return how many requests run and wait, and how much K and V they use and reserve; shared pages count once.

        NEW in 06: `kv_tokens_cached` are the tokens of unused pages, `prefix_tokens_asked` and `prefix_tokens_hit` the
        scheduler's counts.
        """
        running = self.scheduler.running.values()
        tree, page_size = self.scheduler.allocator.tree, self.scheduler.allocator.page_size
        in_tree = (tree.size - len(tree.unused)) * page_size  # NEW in 06: tokens of the pages in use, each page once
        by_user = sum(len(sequence.page_table.path) * page_size for sequence in running)  # the same, once for each user
        used = sum(sequence.computed for sequence in running) - by_user + in_tree
        reserved = sum(sequence.page_table.capacity for sequence in running) - by_user + in_tree
        return super().stats() | {
            "running": len(running),
            "waiting": len(self.scheduler.waiting),
            "kv_tokens_used": used,
            "kv_tokens_reserved": reserved,
            "kv_tokens_capacity": self.cache.capacity,
            "kv_bytes_reserved": reserved * self.config.kv_bytes_per_token(self.dtype),
            "kv_tokens_cached": len(tree.unused) * page_size,
            "prefix_tokens_asked": self.scheduler.tokens_asked,
            "prefix_tokens_hit": self.scheduler.tokens_hit,
            "preemptions": self.scheduler.preemptions,
        }
