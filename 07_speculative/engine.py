"""Stage 07: speculative decoding. Somebody quick guesses the next few tokens, and the model checks them all at once.

Decode reads every weight for one token. To score a token and four more behind it takes hardly longer, since the weights
are read once for all of them. What is missing is tokens to score: the next ones are what is being looked for. So they
are guessed (drafter.py), run behind the newest token as if they were known, and kept as far as the model agrees
(verification.py). How many to guess, and when not to, is speculation.py's matter.

Production engines have just this, for many kinds of drafters. What they add: drafts and verification in one CUDA graph,
trees of guesses, and heads trained on the target's own hidden states.
"""

import time
from functools import partial

import torch

from common.attention import choose_attention
from common.engine import BaseEngine
from common.loader import Loaded
from common.memory import kv_bytes_left, parse_bytes
from common.request import Request
from common.transfers import to_device

from .batch import Batch
from .drafter import Drafter, DraftModel, PromptLookup, load_draft_model
from .kv_cache import KVCache
from .pass_times import measured_costs
from .scheduler import Scheduler
from .speculation import MOST, AdaptiveSpeculation, Speculation
from .verification import verify


class Engine(BaseEngine):
    """As many requests at once as there are pages for their tokens, up to `max_running`.

    token_budget: tokens of one step, of all requests together; a large one finishes prompts in fewer steps, a small one
    lets decoding requests wait less for them. kv_memory: bytes for K and V, as a number or as "512M"; None: 1 GiB on
    the CPU, on a GPU what a step leaves. page_size: tokens in a page. attention: a backend of common.attention.
    NEW in 07: draft: a model as for `load_model`, or "lookup"; "auto" is the bundled draft for the bundled target.
    num_draft_tokens: proposals for each request in a step, always so many; None: as many as pay.
    """

    def __init__(
        self,
        loaded: Loaded,
        max_running: int = 64,
        token_budget: int = 256,
        kv_memory: int | str | None = None,
        page_size: int = 16,
        attention: str = "auto",
        draft: str = "auto",
        num_draft_tokens: int | None = None,
    ):
        super().__init__(loaded)
        draft_model = load_draft_model(draft, loaded)
        backend, self.why = choose_attention(attention, self.device, self.dtype, self.config.head_dim, page_size)
        self.why += f", draft={draft_model.name if draft_model else 'lookup'}"
        scored = max_running * (1 + (MOST if num_draft_tokens is None else num_draft_tokens))  # rows of a step
        # NEW in 05: memory is counted in pages. NEW in 07: a page has its place in both models' pools.
        budget = kv_bytes_left(loaded, token_budget, scored) if kv_memory is None else parse_bytes(kv_memory)
        models = [loaded, draft_model] if draft_model else [loaded]
        num_pages = budget // (page_size * sum(model.config.kv_bytes_per_token(self.dtype) for model in models))
        self.cache = KVCache(loaded, num_pages, page_size, backend)
        self.drafter: Drafter = PromptLookup()
        if draft_model:
            self.drafter = DraftModel(draft_model, num_pages, page_size, attention, token_budget)
        if num_draft_tokens is None:
            speculation = AdaptiveSpeculation(measured_costs(self.model, self.cache, self.drafter))
        else:
            speculation = Speculation(num_draft_tokens)
        self.scheduler = Scheduler(max_running, token_budget, num_pages, page_size, speculation)

    @property
    def max_model_len(self) -> int:
        """NEW in 05: a request can have no more tokens than all pages together."""
        return min(self.config.context_length, self.cache.capacity)

    def accept(self, request: Request) -> None:
        self.scheduler.add(request)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """A token or more for every request that decodes, and a piece of the prompts of those that do not yet."""
        if not self.requests:
            return []
        with self.trace.step() as record:
            chunks = self.scheduler.schedule()
            self.drafter.propose(chunks)  # NEW in 07
            # Kernels for one query want these side by side.
            chunks.sort(key=lambda chunk: len(chunk.token_ids) + len(chunk.proposal.token_ids) > 1)
            for chunk in chunks:
                tokens = len(chunk.token_ids) + len(chunk.proposal.token_ids)
                record.work(chunk.sequence.request.request_id, chunk.phase, tokens)
            record.counters["waiting"] = len(self.scheduler.waiting)
            record.counters["preemptions"] = self.scheduler.preemptions
            record.counters["tokens_hit"] = self.scheduler.tokens_hit
            # NEW in 04: one pass of the model for all of them.
            batch = Batch(chunks, self.cache.attention, self.device)
            attend = partial(self.cache.attend, batch)
            hidden = self.model(batch.token_ids, batch.positions, attend)  # [N, hidden_size]
            # NEW in 07: scored are the newest tokens of whoever has nothing left to run, and the proposals behind them.
            ready, rows = [], []
            for chunk, last in zip(chunks, batch.last_rows, strict=True):
                if chunk.completes:
                    ready.append(chunk)
                    rows += range(last - len(chunk.proposal.token_ids), last + 1)
            requests, proposals = [chunk.sequence.request for chunk in ready], [chunk.proposal for chunk in ready]
            gained = verify(self.model.logits(hidden[to_device(rows, torch.int64, self.device)]), requests, proposals)
            for request, tokens in zip(requests, gained, strict=True):
                self.append_tokens(request, tokens)
            self.scheduler.advance(chunks)
            if all(work.phase == "decode" for work in record.works):
                counts = [len(proposal.token_ids) for proposal in proposals]
                self.scheduler.speculation.took(time.perf_counter() - record.start, counts)
            record.counters["drafted"] = sum(len(proposal.token_ids) for proposal in proposals)
            record.counters["accepted"] = sum(proposal.accepted for proposal in proposals)
            self.retire_finished(requests)
        return requests

    def release(self, request: Request) -> None:
        """A request that ends makes room at once, and the next one that waits takes it in the next step."""
        self.scheduler.remove(request)

    def check(self) -> None:
        self.scheduler.check()

    def stats(self) -> dict[str, float]:
        running = self.scheduler.running.values()
        tree, page_size = self.scheduler.allocator.tree, self.scheduler.allocator.page_size
        shared = (tree.size - len(tree.unused)) * page_size  # NEW in 06: what several use counts once
        counted = sum(len(sequence.page_table.path) * page_size for sequence in running)  # once for each user
        used = sum(sequence.computed for sequence in running) - counted + shared
        reserved = sum(sequence.page_table.capacity for sequence in running) - counted + shared
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
