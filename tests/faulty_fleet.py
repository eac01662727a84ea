"""Stage 08's workers in this process, with all that can go wrong between processes, and workers without a model."""

from collections import deque
from types import SimpleNamespace
from zlib import crc32

import torch

from common.engine import BaseEngine
from common.stages import load_stage_module

fleet_module, station_module, transport_module, scheduler_module, router_module = (
    load_stage_module("08", name) for name in ("fleet", "station", "transport", "scheduler", "router")
)


class FaultyFleet(fleet_module.LocalFleet):
    """Calls wait until the test lets a worker carry them out. Workers die, and lose what they have not answered."""

    depth = 2

    def __init__(self, makers):
        super().__init__(makers)
        self.waiting = [deque() for _ in makers]
        self.words = [deque() for _ in makers]  # what workers are told beside the calls, and have not heard yet
        self.hanging: set[int] = set()
        self.dead: set[int] = set()
        self.at_once = True  # calls are carried out when replies are asked for

    def call(self, number, method, *arguments):
        self.waiting[number].append((method, arguments))

    def tell(self, number, orders):
        if "hello" not in vars(self.stations[number]):  # else it is meant for an earlier life: see `die`
            self.words[number].append(orders)

    def hear(self, number: int) -> None:
        """The worker hears what it was told beside the calls: in time, or long after the call that brought it too."""
        if self.words[number]:
            self.stations[number].tell(self.words[number].popleft())

    def carry_out(self, number: int) -> None:
        """One call of this worker, if it lives and has one."""
        if self.waiting[number] and number not in self.hanging and number not in self.dead:
            method, arguments = self.waiting[number].popleft()
            result = getattr(self.stations[number], method)(*arguments)
            if isinstance(result, fleet_module.WorkerLost):
                self.forget(number)
            self.answered.append(fleet_module.Reply(number, result))

    def replies(self, seconds):
        for number in range(len(self.stations)):
            if number in self.dead and self.waiting[number]:
                self.forget(number)
                self.answered.append(fleet_module.Reply(number, fleet_module.WorkerLost("killed")))
            elif self.at_once:
                self.hear(number)
                self.carry_out(number)
        replies = super().replies(seconds)
        for reply in replies:
            if isinstance(reply.result, fleet_module.WorkerLost):
                self.waiting[reply.number].clear()
        return replies

    def forget(self, number: int) -> None:
        self.waiting[number].clear()
        self.words[number].clear()
        self.answered = [reply for reply in self.answered if reply.number != number]

    def die(self, number: int, returns: bool = True) -> None:
        """SIGKILL at this moment: what it has done and not said is lost. With `returns`, Ray has restarted it."""
        had_calls = bool(self.waiting[number]) or any(reply.number == number for reply in self.answered)
        self.forget(number)
        self.stations[number].transport.offers.clear()
        super().kill(number)
        self.hanging.discard(number)
        if not returns:
            self.dead.add(number)
        if had_calls:
            self.answered.append(fleet_module.Reply(number, fleet_module.WorkerLost("killed")))
        if returns:  # the new life refuses what is meant for the old one
            station = self.stations[number]
            station.work = station.drop = lambda *_: fleet_module.WorkerLost("another life")

            def hello():
                del station.work, station.drop, station.hello
                return station.hello()

            station.hello = hello

    def kill(self, number):
        self.forget(number)
        super().kill(number)
        self.hanging.discard(number)


NO_MODEL = SimpleNamespace(
    name="none", model=None, tokenizer=None, eos_token_ids=frozenset(), device=torch.device("cpu"), dtype=torch.float32,
    config=SimpleNamespace(vocab_size=100, context_length=1000),
)  # fmt: skip


def fingerprint(tokens) -> int:
    return crc32(bytes(tokens))


def next_token(tokens) -> int:
    """The text goes on in one way only, and it depends on all of it."""
    return fingerprint(tokens) % 3


class WorkerWithoutModel(BaseEngine):
    """The stage's scheduler over a memory that holds, for each place, a fingerprint of the text up to there.

    What is read must be what was written for exactly this text, also after it has come from another worker.
    """

    def __init__(self, num_pages: int, page_size: int = 2):
        super().__init__(NO_MODEL)
        speculation = load_stage_module("08", "speculation").Speculation(0)
        self.scheduler = scheduler_module.Scheduler(4, 9, num_pages, page_size, speculation)
        self.memory = torch.full((1, num_pages, page_size), -1, dtype=torch.int64)
        self.pools = [self.memory]

    def accept(self, request):
        self.scheduler.add(request)

    def release(self, request):
        self.scheduler.remove(request)

    def check(self):
        self.scheduler.check()

    def read_ahead(self, sequence):
        """It has no draft model."""

    def step(self):
        with self.trace.step() as record:
            chunks, flat = self.scheduler.schedule(), self.memory.view(-1)
            for chunk in chunks:
                sequence, start = chunk.sequence, chunk.sequence.computed
                record.work(sequence.request.request_id, chunk.phase, len(chunk.token_ids))
                end = start + len(chunk.token_ids)
                for position, slot in enumerate(sequence.page_table.slots(start, end), start):
                    flat[slot] = fingerprint(sequence.request.all_token_ids[: position + 1])
            for chunk in chunks:
                tokens, end = chunk.sequence.request.all_token_ids, chunk.sequence.computed + len(chunk.token_ids)
                for position, slot in enumerate(chunk.sequence.page_table.slots(0, end)):
                    assert flat[slot] == fingerprint(tokens[: position + 1]), "somebody else's K and V"
            requests = [chunk.sequence.request for chunk in chunks if chunk.completes]
            for request in requests:
                request.append(next_token(request.all_token_ids))
            self.scheduler.advance(chunks)
            self.retire_finished(requests)
        return requests


def fleet_without_model(prefill: int, decode: int, pages: int = 12, **seconds):
    """A router before such workers, and its fleet."""
    fleet = FaultyFleet([lambda: WorkerWithoutModel(pages)] * (prefill + decode))
    roles = ["prefill"] * prefill + ["decode"] * decode
    options = {"hang_seconds": 1e9, "wait_seconds": 1e9} | seconds
    return router_module.Router(NO_MODEL, fleet, roles, **options), fleet
