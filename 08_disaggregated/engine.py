"""Stage 08: prefill and decode apart. A long prompt no longer holds up the requests that decode.

Prefill workers compute prompts, decode workers everything after the first token, each in a process of its own with its
own pool and tree. The pages of a prompt travel from one to the other. What was the engine is now in a worker, hardly
changed; the engine is a router in front of a fleet of workers (deployment.py). 08a, the handoff: messages.py,
kv_transport.py, worker.py. 08b, the router: fleet.py, routing.py, router.py. 08c, processes and their death:
recovery.py, ray_fleet.py.

Production engines do this with a router of their own (Mooncake, NVIDIA Dynamo, llm-d) in front of whole vLLM or SGLang
servers. What they add: pages that go from GPU to GPU, and as many workers of either kind as the load asks for.
"""

import time
from functools import partial

import torch
from torch import Tensor

from common.attention import choose_attention
from common.engine import BaseEngine
from common.loader import Loaded
from common.memory import kv_bytes_left, parse_bytes
from common.request import Request
from common.transfers import to_device

from .batch import Batch
from .deployment import Engine  # noqa: F401 (NEW in 08: a router in front of workers; each runs a WorkerEngine)
from .drafter import Drafter, DraftModel, PromptLookup, load_draft_model
from .kv_cache import KVCache
from .pass_times import measured_costs
from .scheduler import Scheduler, Sequence
from .speculation import MOST, AdaptiveSpeculation, Speculation
from .verification import verify


class WorkerEngine(BaseEngine):
    """As many requests at once as there are pages for their tokens, up to `max_running`.

    token_budget: tokens of one step, of all requests together; a large one finishes prompts in fewer steps, a small one
    lets decoding requests wait less for them. kv_memory: bytes for K and V, as a number or as "512M"; None: 1 GiB on
    the CPU, on a GPU what a step leaves. page_size: tokens in a page. attention: a backend of common.attention.
    NEW in 07: draft: a model as for `load_model`, or "lookup"; "auto" is the bundled draft for the bundled target.
    num_draft_tokens: proposals for each request in a step, always so many; None: as many as pay.
    NEW in 08: gpu_share: the part of a GPU's memory that this worker may fill.
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
        gpu_share: float = 1.0,
    ):
        super().__init__(loaded)
        draft_model = load_draft_model(draft, loaded)
        backend, self.why = choose_attention(attention, self.device, self.dtype, self.config.head_dim, page_size)
        self.why += f", draft={draft_model.name if draft_model else 'lookup'}"
        scored = max_running * (1 + (MOST if num_draft_tokens is None else num_draft_tokens))  # rows of a step
        # NEW in 05: memory is counted in pages. NEW in 07: a page has its place in both models' pools.
        # NEW in 08: several workers may share a GPU.
        left = kv_bytes_left(loaded, token_budget, scored, gpu_share) if kv_memory is None else kv_memory
        budget = parse_bytes(left)
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

    @property
    def pools(self) -> list[Tensor]:
        """NEW in 08: all that belongs to a page and travels with it: each [layers, pages, page_size, H_kv, D]."""
        caches = [self.cache, self.drafter.cache] if isinstance(self.drafter, DraftModel) else [self.cache]
        return [tensor for cache in caches for tensor in (cache.k, cache.v)]

    @torch.inference_mode()
    def read_ahead(self, sequence: Sequence) -> None:
        """NEW in 08: Have the draft model read what has been computed, so that its K and V can be sent along."""
        if isinstance(self.drafter, DraftModel):
            self.drafter.read_ahead(sequence)

    def accept(self, request: Request) -> None:
        self.scheduler.add(request)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """A token or more for every request that decodes, and a piece of the prompts of those that do not yet."""
        if not self.requests:
            return []
        with self.trace.step() as record:
            chunks = self.scheduler.schedule()
            if not chunks:  # NEW in 08: nothing fits before pages that are in transfer have been dropped
                return []
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
        running = self.scheduler.holding
        tree, page_size = self.scheduler.allocator.tree, self.scheduler.allocator.page_size
        shared = (tree.size - len(tree.unused)) * page_size  # NEW in 06: what several use counts once
        counted = sum(len(sequence.page_table.path) * page_size for sequence in running)  # once for each user
        used = sum(sequence.computed for sequence in running) - counted + shared
        reserved = sum(sequence.page_table.capacity for sequence in running) - counted + shared
        return super().stats() | {
            "running": len(self.scheduler.running),
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
