"""Stage 08's workers in this process, with all that can go wrong between processes, and workers without a model."""

from collections import deque
from types import SimpleNamespace
from zlib import crc32

import torch

from common.engine import BaseEngine
from common.stages import load_stage_module
from tests.helpers.engine_options import drain
from tests.helpers.scheduler_machine import read, write

fleet_module, messages, worker_module, kv_transport, scheduler_module, router_module = (
    load_stage_module("08", name) for name in ("fleet", "messages", "worker", "kv_transport", "scheduler", "router")
)
Event = fleet_module.Event


class SlowTransport(kv_transport.LocalTransport):
    """Pages arrive some turns later, also those of a transfer that has failed or was cancelled in the meantime."""

    def __init__(self, scheduler):
        super().__init__()
        self.scheduler, self.arriving = scheduler, {}
        self.broken = False  # whether every transfer fails, before its last bytes have arrived

    def receive(self, ticket, skip, pages, on_done):
        return SlowTransfer(self, ticket, skip, list(pages))

    def check(self) -> None:
        """Raise AssertionError if a page is free, or another request may find it cached, that is still written to."""
        allocator = self.scheduler.allocator
        free = {*allocator.free, *(node.page for node in allocator.tree.unused)}
        for pages in self.arriving.values():
            assert free.isdisjoint(pages), "free, and being written to"


class SlowTransfer:
    """It is final when it has been looked at for the third time; what is no longer on offer then arrives as garbage."""

    def __init__(self, transport: SlowTransport, ticket, skip: int, pages: list[int]):
        self.transport, self.ticket, self.skip, self.pages = transport, ticket, skip, pages
        self.looks, self.local, self.bytes, self.seconds = 0, None, 0, 0.0
        transport.arriving[self] = pages

    @property
    def final(self) -> bool:
        self.looks += 1
        if self.looks >= 3 and self.local is None:
            self.transport.check()
            del self.transport.arriving[self]
            self.local = kv_transport.LocalTransfer(self.transport.pools, *self.ticket, self.skip, self.pages)
            if not self.local.filled:
                self.transport.pools[0][self.pages] = -2
        return self.local is not None

    def done(self) -> bool:
        if self.transport.broken:
            raise ConnectionError("the data path is broken")
        return self.final and self.local.done()

    def wait(self, seconds):
        """Nothing happens meanwhile."""

    def cancel(self):
        """What is on its way arrives all the same."""


class FaultyFleet(fleet_module.LocalFleet):
    """Mail and reports wait until the test delivers, loses, repeats or reorders them. Workers die at any moment."""

    def __init__(self, makers):
        super().__init__(makers)
        self.workers = [self.begin(worker.engine) for worker in self.workers]
        self.mail = [[] for _ in makers]
        self.reports = [deque([worker.hello()]) for worker in self.workers]  # reports, Hello and Lost
        self.greeted = [False] * len(makers)  # whether the router knows of the process that lives now
        self.hanging: set[int] = set()
        self.dead: set[int] = set()
        self.at_once = True  # every call of `events` delivers everything, and gives each worker a turn
        self.heartbeats = False  # whether each turn sends one

    def begin(self, engine) -> worker_module.Worker:
        return worker_module.Worker(engine, SlowTransport(engine.scheduler))

    def check(self):
        super().check()
        for worker in self.workers:
            worker.transport.check()

    def send(self, number, mail):
        if self.greeted[number]:  # otherwise it is for an earlier life
            self.mail[number].append(mail)

    def turn(self, number: int, heartbeat: bool = False) -> None:
        """The worker reads all its mail, if it lives, and does what it can."""
        if number not in self.hanging | self.dead:
            while self.mail[number]:
                self.workers[number].read(self.mail[number].pop(0))
            if report := self.workers[number].turn(heartbeat or self.heartbeats):
                self.reports[number].append(report)

    def events(self, seconds):
        events = []
        for number, reports in enumerate(self.reports):
            if self.at_once:
                self.turn(number)
            while reports:
                events.append(Event(number, reports.popleft()))
                self.greeted[number] |= isinstance(events[-1].news, messages.Hello)
        return events

    def tamper(self, queue, what: str, place: int) -> None:
        """Lose, repeat or delay one message of `mail[number]` or `reports[number]`."""
        places = [i for i, one in enumerate(queue) if isinstance(one, (messages.Mail, messages.Report))]
        if places:
            message = queue[places[place % len(places)]]
            if what != "repeat":
                del queue[places[place % len(places)]]
            if what != "lose":
                queue.append(message)

    def die(self, number: int, returns: bool = True) -> None:
        """SIGKILL at this moment: what it has done and not said is lost. With `returns`, another process starts."""
        self.hanging.discard(number)
        self.mail[number].clear()
        self.reports[number].clear()
        self.workers[number].transport.offers.clear()
        self.workers[number] = self.begin(self.makers[number]())
        self.greeted[number] = False
        self.reports[number].append(messages.Lost("killed"))
        self.dead.add(number)
        if returns:
            self.revive(number)

    def revive(self, number: int) -> None:
        self.dead.discard(number)
        self.reports[number].append(self.workers[number].hello())


NO_MODEL = SimpleNamespace(
    name="none", model=None, tokenizer=None, eos_token_ids=frozenset(), sampling_defaults={},
    device=torch.device("cpu"), dtype=torch.float32,
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
        self.memory = torch.full((num_pages, page_size), -1, dtype=torch.int64)
        self.pools = [self.memory]

    def accept(self, request):
        self.scheduler.add(request)

    def release(self, request):
        self.scheduler.remove(request)

    def check(self):
        self.scheduler.check()
        assert len(self.scheduler.running) + len(self.scheduler.reserved) <= self.scheduler.max_running

    def read_ahead(self, sequence):
        """It has no draft model."""

    def step(self):
        with self.trace.step() as record:
            chunks, flat, texts = self.scheduler.schedule(), self.memory.view(-1), {}
            assert sum(len(chunk.token_ids) for chunk in chunks) <= self.scheduler.token_budget
            for chunk in chunks:
                sequence = chunk.sequence
                record.work(sequence.request.request_id, chunk.phase, len(chunk.token_ids))
                texts[sequence] = sequence.request.all_token_ids[: chunk.start + len(chunk.token_ids)]
                write(flat, sequence.page_table, texts[sequence], chunk.start, fingerprint)
            for sequence, text in texts.items():
                read(flat, sequence.page_table, text, fingerprint)
            requests = [chunk.sequence.request for chunk in chunks if chunk.completes]
            for request in requests:
                request.append(next_token(request.all_token_ids))
            self.scheduler.count_computed(chunks)
            self.retire_finished(requests)
        return requests


def fleet_without_model(prefill: int, decode: int, replicas: int = 0, pages: int = 12):
    """A router in front of such workers, and its fleet."""
    fleet = FaultyFleet([lambda: WorkerWithoutModel(pages)] * (prefill + decode + replicas))
    roles = ["prefill"] * prefill + ["decode"] * decode + ["replica"] * replicas
    return router_module.Router(NO_MODEL, fleet, roles, wait_seconds=1e9), fleet


def lose_both_workers(engine: BaseEngine) -> None:
    """Run all requests of an engine with two of these workers, which die one after the other."""
    for worker in (0, 1):
        for _ in range(4):
            engine.step()
            engine.check()
        engine.fleet.die(worker)
    drain(engine)
    engine.check()
