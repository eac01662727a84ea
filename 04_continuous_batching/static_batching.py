"""NEW in 04: static batching, for comparison only: a fixed group, padded, that waits for its slowest member.

This is what a server does that calls `generate` of a library on batches. Model, cache and attention are those of
the stage; what differs is which requests run when. The group's prompts are padded to the longest, and requests that
have ended stay in the batch, computing nothing of use, until all have.
"""

import torch

from common.engine import BaseEngine
from common.loader import Loaded
from common.request import Request
from common.sampling import SamplerOutput
from common.trace import StepRecord

from .batch import Batch
from .kv_cache import KVCache
from .scheduler import Chunk, Sequence

PADDING = 0  # any token id: its logits are never read


class StaticEngine(BaseEngine):
    """Groups of `max_running` requests in order of arrival, one group after the other."""

    def __init__(self, loaded: Loaded, max_running: int = 32):
        super().__init__(loaded)
        self.max_running = max_running
        self.cache = KVCache(loaded, max_running)
        self.group: list[Sequence] = []

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Run all prompts of a new group at once, or one more token of each request of the group."""
        if not self.requests:
            return []
        with self.trace.step() as record:
            chunks = self.schedule(record)
            drawn = self.run(chunks)
            return self.commit(drawn)

    def schedule(self, record: StepRecord) -> list[Chunk]:
        """Choose all that the group has left to run, padded to the longest; a new group if the last one has ended."""
        if not self.group:
            first = list(self.requests.values())[: self.max_running]
            self.group = [Sequence(request, slot) for slot, request in enumerate(first)]
        width = max(sequence.remaining for sequence in self.unfinished)
        chunks = []
        for sequence in self.group:
            request, token_ids = sequence.request, []
            if not request.finished:
                token_ids = request.token_ids_between(sequence.computed, request.num_tokens)
                record.work(request.request_id, "decode" if request.token_ids else "prefill", len(token_ids))
            if width > len(token_ids):
                record.work(request.request_id, "padding", width - len(token_ids))
            # What padding leaves in the slot is never seen: the sequence's own next tokens overwrite it in time.
            token_ids += [PADDING] * (width - len(token_ids))
            chunks.append(Chunk(sequence, sequence.computed, token_ids, completes=False))
        return chunks

    def run(self, chunks: list[Chunk]) -> SamplerOutput:
        """Run the chunks with their padding in one pass; draw a token for each request that has not finished."""
        batch = Batch(chunks, self.config.num_heads // self.config.num_kv_heads, self.device, self.dtype)
        hidden = self.model(batch.token_ids, batch.positions, self.cache.bind(batch))  # [N, hidden_size]
        width, running = len(chunks[0].token_ids), self.unfinished
        rows = [s.slot * width + s.remaining - 1 for s in running]  # rows of the last tokens before the padding
        return self.draw([sequence.request for sequence in running], self.model.logits(hidden[rows]))

    def commit(self, drawn: SamplerOutput) -> list[Request]:
        """Append a token to each unfinished request of the group, and retire those that this ends."""
        tokens, running = [[token] for token in drawn.tokens()], self.unfinished
        requests = self.append_tokens([sequence.request for sequence in running], tokens)
        for sequence in running:
            sequence.computed = sequence.request.num_tokens - 1  # the newest token is yet to be run
        self.retire_finished(requests)
        return requests

    @property
    def unfinished(self) -> list[Sequence]:
        """Return the sequences of the group whose requests have not finished."""
        return [sequence for sequence in self.group if not sequence.request.finished]

    def release(self, request: Request) -> None:
        """Free all slots of the group once its last request has ended, and none before."""
        if all(sequence.request.finished for sequence in self.group):
            self.group = []
