"""CUDA graphs for decode: the launches of a step are recorded once, and from then on replayed with one call.

A decode step has about nine kernels for each layer, most of a few microseconds. Python takes longer to launch them than
a GPU to run them, so the GPU waits. A graph holds the launches with all their arguments. So what differs from step
to step must lie at addresses that never change (static buffers), sizes must be fixed (one graph for each of a ladder of
batch sizes), and nothing that is recorded may depend on a value that the host has looked at.

A batch that is smaller than its graph is padded with rows that have no slot: backends write K and V of a negative slot
nowhere (vLLM's PAD_SLOT_ID), and such a row attends to one token, whichever its page table names.

Drafts that stage 07 verifies are a few tokens of one request. They run as if each were a request of its own, with the
same pages and its own length: one kind of graph does for both.

To a stage, `GraphedModel` is its model, called as ever. What production engines add: graphs of the parts between
attention, for batches with prompts (vLLM's piecewise graphs).
"""

from collections.abc import Callable
from functools import partial
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ..attention import Attention, PagedBatch
from ..engine import AroundModel
from ..fused.rotation import check_positions
from ..model import Attend, Transformer

NO_SLOT = -1
FEW = 16  # tokens of one request, at most, that run like separate requests: each reads all K and V of the request
WARM_UPS = 2  # kernels are compiled and workspaces allocated before anything is recorded
recorded: WeakSet[torch.cuda.CUDAGraph] = WeakSet()  # all graphs of this process


def why_no_graphs(device: torch.device, attention: Attention | None) -> str | None:
    """Return why steps cannot be recorded here, None if they can."""
    if device.type != "cuda":
        return "CUDA graphs need a CUDA device"
    if attention is None:
        return "they need K and V in pages, as from stage 05 on"
    return None if attention.capturable else f"the attention backend {attention.name!r} looks at values on the host"


def ladder(most: int) -> list[int]:
    """Return the batch sizes to record, ascending: 1, 2, 4, 8, then every 16, up to `most`."""
    return [size for size in (1, 2, 4, 8, *range(16, most, 16)) if size < most] + [most]


class Capture:
    """Record what a function launches, in memory that all recordings share: only one of them runs at a time."""

    def __init__(self):
        self.pool = None
        self.stream = torch.cuda.Stream()  # one for all, on the current GPU: cuBLAS has a workspace for each stream

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return a function that launches the same again."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UPS):
                function()
        torch.cuda.current_stream().wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            function()
        self.pool = graph.pool()
        recorded.add(graph)
        return graph.replay


def forget_recordings() -> None:
    """Empty all graphs of this process, which cannot be replayed afterwards.

    NCCL ends no communicator, not even one to be aborted, while a graph holds its kernels (NCCL's commDestroySync).
    """
    for graph in list(recorded):
        graph.reset()


class GraphedModel(AroundModel):
    """A model that replays the batches in which every request has one token, or up to FEW, and runs others as they are.

    cache: a stage's KVCache, with `bind`, the backend `attention` (capturable: it looks at no value on the host), and
    pools k and v of `[layers, pages, page_size, H_kv, D]`. most_tokens: of the longest sequence. sizes: of batches, in
    tokens, ascending. memory_of: another `GraphedModel`, which never runs at the same time and shares the memory of its
    recordings with this one. All other attributes are the model's own.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Transformer,
        cache,
        most_tokens: int,
        sizes: list[int],
        memory_of: "GraphedModel | None" = None,
    ):
        self.model, self.cache, self.sizes = model, cache, sizes
        self.page_size = cache.k.shape[2]
        self.most_tokens = min(most_tokens, model.config.context_length)  # A draft model's may be less than a table's.
        width = -(-most_tokens // self.page_size)
        most, device = sizes[-1], cache.k.device
        self.token_ids, self.positions, self.slot_mapping = torch.zeros(3, most, dtype=torch.int64, device=device)
        self.slot_mapping.fill_(NO_SLOT)  # A recording made while requests run must not write to their pages.
        self.starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self.lengths = torch.ones(most, dtype=torch.int32, device=device)
        self.page_tables = torch.zeros(most, width, dtype=torch.int32, device=device)
        self.hidden = torch.zeros(most, model.config.hidden_size, dtype=model.norm.weight.dtype, device=device)
        scores = model.logits(self.hidden[:1])
        self.scores = torch.zeros(most, model.config.vocab_size, dtype=scores.dtype, device=device)
        self.replayed = 0  # rows of the newest batch, if it was replayed
        # The largest size comes first: the others find room in the memory that it has needed.
        self.capture = memory_of.capture if memory_of else Capture()
        self.replays = {size: self.capture(partial(self._forward, size)) for size in reversed(sizes)}

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """As `Transformer`, for the `attend` of a stage: a BoundCache, which has the batch."""
        batch, count = attend.batch, len(token_ids)
        if count > self.sizes[-1] or max(batch.host_query_lengths) > FEW:
            self.replayed = 0
            return self.model(token_ids, positions, attend)
        check_positions(positions, attend, self.model.cos)  # a replay runs no Python
        batch = batch.one_by_one(positions)
        size = next(size for size in self.sizes if size >= count)
        for static, tensor in (
            (self.token_ids, token_ids),
            (self.positions, positions),
            (self.slot_mapping, batch.slot_mapping),
            (self.lengths, batch.lengths),
            (self.page_tables[:, : batch.page_tables.shape[1]], batch.page_tables),
        ):
            static[:count] = tensor
        if count < size:
            self.slot_mapping[count:size] = NO_SLOT
            self.lengths[count:size] = 1
        self.replays[size]()
        self.replayed = count
        return self.hidden[:count]

    def around(self, model: Transformer) -> "GraphedModel":
        """Return graphs of another model, which runs in place of this one."""
        return GraphedModel(model, self.cache, self.most_tokens, self.sizes, memory_of=self)

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Transformer.logits`; if `hidden` is a replayed batch as a whole, its scores come out of the graph."""
        if self.replayed == len(hidden):
            return self.scores[: self.replayed]
        self.replayed = 0
        return self.model.logits(hidden)

    def _forward(self, size: int) -> None:
        """Run what is recorded. On the host sequences have the greatest length, so the launches serve all lengths."""
        batch = PagedBatch(
            query_starts=self.starts[: size + 1],
            lengths=self.lengths[:size],
            page_tables=self.page_tables[:size],
            slot_mapping=self.slot_mapping[:size],
            page_size=self.page_size,
            decodes=size,
            host_query_lengths=[1] * size,
            host_lengths=[self.most_tokens] * size,
        )
        self.hidden[:size] = self.model(self.token_ids[:size], self.positions[:size], self.cache.bind(batch))
        head, scores = self.model.head, self.scores[:size]
        if type(head) is nn.Linear and head.weight.dtype == scores.dtype:
            # In place: a copy of the scores would add a third to the time.
            torch.mm(self.hidden[:size], head.weight.T, out=scores)
        else:
            scores.copy_(self.model.logits(self.hidden[:size]))
