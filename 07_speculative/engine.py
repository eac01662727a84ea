"""Stage 07: speculative decoding. A drafter drafts the next few tokens, and the model verifies them all at once.

Decode reads every weight for one token. To score a token and four more behind it takes hardly longer, since the weights
are read once for all of them. But the tokens to score would be the next ones, and those are not known yet. So they
are drafted (drafter.py), run behind the newest token as if they were known, and kept as far as the model agrees
(verification.py). How many to draft, and when none, is decided in speculation.py and adaptive_speculation.py.

Production engines have just this, for many kinds of drafters. What they add: drafts and verification in one CUDA graph,
trees of draft tokens, and heads trained on the target's own hidden states.
"""

import time

import torch

from common.attention import choose_attention
from common.engine import BaseEngine
from common.loader import Loaded
from common.loader.draft import load_draft_model
from common.memory import kv_bytes_left, pages_that_fit, parse_bytes
from common.pass_times import measured_costs
from common.request import Request
from common.sampling import SampledToken
from common.trace import StepRecord

from .adaptive_speculation import AdaptiveSpeculation
from .batch import Batch
from .drafter import DraftModel, PromptLookup
from .kv_cache import KVCache
from .scheduler import Chunk, Scheduler
from .speculation import MAX_DRAFT_TOKENS, Speculation
from .verification import verify


class Engine(BaseEngine):
    """As many requests at once as there are pages for their tokens, up to `max_running`.

    token_budget: tokens of one step, of all requests together; a large one finishes prompts in fewer steps, a small one
    lets decoding requests wait less for them. kv_memory: bytes for K and V, as a number or as "512M"; None: 1 GiB on
    the CPU, on a GPU what a step leaves. page_size: tokens in a page. attention: a backend of common.attention.
    NEW in 07: draft: a model as for `load_model`, or "lookup"; "auto" is the bundled draft for the bundled target.
    num_draft_tokens: for each request in a step, a fixed number; None: as many as pay (07b).
    """

    def __init__(
        self,
        loaded: Loaded,
        max_running: int = 64,  # twice the 32 of stage 04, since pages leave room for more requests
        token_budget: int = 256,
        kv_memory: int | str | None = None,
        page_size: int = 16,
        attention: str = "auto",
        draft: str = "auto",
        num_draft_tokens: int | None = None,
    ):
        super().__init__(loaded)
        draft_model = load_draft_model(draft, loaded)
        head_dim = self.config.head_dim
        backend, self.startup_notes = choose_attention(attention, self.device, self.dtype, head_dim)
        self.startup_notes += f", draft={draft_model.name if draft_model else 'lookup'}"
        scored = max_running * (1 + (MAX_DRAFT_TOKENS if num_draft_tokens is None else num_draft_tokens))  # rows
        drawn = scored if draft_model else 0  # rows whose draft tokens come with their distributions
        # Memory is counted in pages. NEW in 07: a page has its place in both models' pools.
        left = kv_bytes_left(loaded, token_budget, scored, drawn=drawn) if kv_memory is None else kv_memory
        budget = parse_bytes(left)
        models = [loaded, draft_model] if draft_model else [loaded]
        token_bytes = sum(model.config.kv_bytes_per_token(self.dtype) for model in models)
        num_pages = pages_that_fit(budget, page_size, token_bytes)
        self.cache = KVCache(loaded, num_pages, page_size, backend)  # first: it may raise MemoryError
        self.drafter: PromptLookup | DraftModel = PromptLookup()
        if draft_model:
            self.drafter = DraftModel(draft_model, num_pages, page_size, attention, token_budget)
        if num_draft_tokens is None:
            speculation = AdaptiveSpeculation(measured_costs(self.model, self.cache, self.drafter))
        else:
            speculation = Speculation(num_draft_tokens)
        self.scheduler = Scheduler(max_running, token_budget, num_pages, page_size, speculation)

    def measure(self) -> None:
        """NEW in 07: Measure the passes of both models again: the times of those in CUDA graphs are others."""
        if isinstance(self.scheduler.speculation, AdaptiveSpeculation):
            self.scheduler.speculation.costs = measured_costs(self.model, self.cache, self.drafter)

    @property
    def max_model_len(self) -> int:
        """Return the most tokens of a request: the context, or what all pages hold."""
        return min(self.config.context_length, self.cache.capacity)

    def accept(self, request: Request) -> None:
        """Queue the request, and raise InvalidInput if it can never run."""
        self.scheduler.add(request)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Give every decoding request one token or more, and run pieces of the prompts of the others."""
        if not self.requests:
            return []
        with self.trace.step() as record:
            chunks = self.schedule(record)
            tokens = self.run(chunks)
            return self.commit(chunks, tokens, record)

    def schedule(self, record: StepRecord) -> list[Chunk]:
        """Choose tokens of many requests, as the scheduler decides, and record how many wait."""
        chunks = self.scheduler.schedule(self.drafter)
        self.drafter.draft(chunks)  # NEW in 07
        chunks.sort(key=lambda chunk: chunk.num_tokens > 1)  # NEW in 07: single tokens first, for kernels of one query
        for chunk in chunks:
            record.work(chunk.sequence.request.request_id, chunk.phase, chunk.num_tokens)
        record.counters["waiting"] = len(self.scheduler.waiting)
        # Both count since the start.
        record.counters["preemptions"] = self.scheduler.preemptions
        record.counters["tokens_hit"] = self.scheduler.tokens_hit
        return chunks

    def run(self, chunks: list[Chunk]) -> list[list[SampledToken]]:
        """Run all chunks in one pass of the model; NEW in 07: verify the draft of each that completes its sequence."""
        batch = Batch(chunks, self.device)
        hidden = self.model(batch.token_ids, batch.positions, self.cache.bind(batch.paged))  # [N, hidden_size]
        requests = [chunk.sequence.request for chunk in chunks if chunk.completes]
        drafts = [chunk.draft for chunk in chunks if chunk.completes]
        return verify(self.model.logits(hidden[batch.logits_rows]), requests, drafts)

    def commit(self, chunks: list[Chunk], tokens: list[list[SampledToken]], record: StepRecord) -> list[Request]:
        """Append its tokens to the request of each chunk that completes its sequence; retire those that this ends."""
        completed = [chunk.sequence.request for chunk in chunks if chunk.completes]
        requests = self.append_tokens(completed, tokens)
        self.scheduler.count_computed(chunks)
        # NEW in 07: time the steps in which no model read a prompt. The trace counts drafted and accepted tokens.
        counts = [len(chunk.draft.token_ids) for chunk in chunks]
        if all(work.phase == "decode" for work in record.works) and not self.drafter.reads_prompts:
            self.scheduler.speculation.record_step_time(time.perf_counter() - record.start, counts)
        record.counters["drafted"] = sum(counts)
        record.counters["accepted"] = sum(chunk.draft.accepted for chunk in chunks)
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

        `kv_tokens_cached` are the tokens of unused pages, `prefix_tokens_asked` and `prefix_tokens_hit` the
        scheduler's counts.
        """
        running = self.scheduler.running.values()
        tree, page_size = self.scheduler.allocator.tree, self.scheduler.allocator.page_size
        in_tree = (tree.size - len(tree.unused)) * page_size  # tokens of the pages in use, each page once
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
            **self.scheduler.speculation.stats(),
        }
