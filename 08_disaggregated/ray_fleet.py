"""NEW in 08: a fleet of processes. Ray places and starts them, on this machine or on many, and says when one has died.

Nothing else of Ray is relied on. Mail and reports travel over connections of their own (common/distributed/channel.py):
in order, and a millisecond a step cheaper than calls or generators of Ray. A connection is one life of a worker. When
it ends or stays silent, everything that was ordered over it is gone. Each worker has a keeper, a thread of the router's
process, which then connects again, or starts a new process if the old one is dead, hangs or has failed.

Nothing imports this file before workers="ray" is asked for.
"""

import logging
import threading
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import torch

from common.acceleration.accelerate import make_engine
from common.distributed.channel import Door, connect, hang_up, limit_reads, on_thread, receive_into, send_from
from common.distributed.cluster import Cluster, describe, host, ray
from common.distributed.ranked import POLL_SECONDS, OnAllRanks, RankedTransport
from common.distributed.tcp_transport import TcpTransport
from common.loader import Loaded, load_model
from common.parallel.ranks import Ranks
from common.process import freeze_loaded_objects, join_all, run_on_temporary_thread

from .engine import WorkerEngine
from .fleet import Event, Fleet
from .messages import Hello, Lost, Mail
from .worker import CLOSED, LOOK, Worker, collect

START_SECONDS = 600.0  # for a process to start and load its model
CONNECT_SECONDS = 30.0  # for router and worker to find each other
CLOSE_SECONDS = 5.0  # for all keepers together to notice that their workers have been ended
AGAIN_SECONDS, MOST_SECONDS = 1.0, 30.0  # from the loss of a worker to the next start, which doubles while starts fail

log = logging.getLogger("router")


class WorkerProcess:
    """The Ray actor. Its methods run one after another, on one thread, which is the engine's."""

    def load(self, model: dict[str, Any], options: dict[str, Any], ranks: int, threads: int, loopback: bool) -> None:
        """Load the model and make the worker, which spans `ranks` processes of this machine."""
        torch.set_num_threads(threads)
        self.host = host(loopback)
        if ranks == 1:
            loaded = run_on_temporary_thread(lambda: load_model(**model))
            engine = run_on_temporary_thread(lambda: make_engine(WorkerEngine, loaded, **options))
            self.worker = Worker(engine, TcpTransport(self.host))
        else:
            self.worker = worker_on_ranks(Ranks(ranks, **model), options, self.host)
        freeze_loaded_objects()

    def listen(self) -> tuple[tuple[str, int], bytes]:
        """Open a door for the router; return its address and key."""
        self.door = Door(self.host)
        return self.door.address, self.door.key

    def run(self) -> None:
        """Work for the router that connects, until the connection ends. Then let go of everything."""
        mailbox: SimpleQueue[Mail | None] = SimpleQueue()
        self.worker.wake = partial(mailbox.put, LOOK)
        with (
            self.door.accept(CONNECT_SECONDS) as connection,
            on_thread(receive_into, mailbox, connection, CLOSED),
            suppress(BrokenPipeError, ConnectionResetError),  # the router is gone
        ):
            connection.send(self.worker.hello())
            Worker.run(self.worker, mailbox, connection.send)
        self.worker.clear()


def make_worker(loaded: Loaded, options: dict[str, Any], host: str) -> Worker:
    """Return one rank's part of a worker."""
    transport = RankedTransport(TcpTransport(host), loaded.shard, loaded.device)
    return Worker(make_engine(WorkerEngine, loaded, **options), transport)


def worker_on_ranks(ranks: Ranks, options: dict[str, Any], host: str) -> OnAllRanks:
    """Return a worker whose engine runs on all ranks in step."""
    with ranks.in_step():
        ranks.tell("make", __name__, "make_worker", options, host)
        worker = make_worker(ranks.loaded, options, host)
    ranks.answers()
    worker.poll_seconds = POLL_SECONDS
    return OnAllRanks(worker, ranks)


class RayFleet(Fleet):
    """A process for each of `options`, in a Ray cluster. model: arguments of `load_model`; weights do not travel.

    ranks: processes, on one machine, that share each worker's model.
    """

    def __init__(
        self, model: dict[str, Any], options: list[dict[str, Any]], ranks: int, address: str | None, hang_seconds: float
    ):
        self.cluster = Cluster(address, len(options), ranks, model["device"])
        self.description = self.cluster.description + (f" of {ranks} ranks" if ranks > 1 else "")
        self.model, self.ranks, self.hang_seconds = model | {"device": self.cluster.device}, ranks, hang_seconds
        self.options = [one | {"gpu_share": self.cluster.gpu_share()} for one in options]
        self.closing = threading.Event()
        self.inbox: SimpleQueue[tuple[Event, SimpleQueue[Mail] | None]] = SimpleQueue()
        self.outboxes: dict[int, SimpleQueue[Mail]] = {}  # of the lives that the router knows of
        self.actors, self.connections = {}, {}  # of the workers that have one
        keepers = [partial(self._keep, number) for number in range(len(options))]
        self.keepers = [threading.Thread(target=keep, name="keeper", daemon=True) for keep in keepers]
        for keeper in self.keepers:
            keeper.start()

    def send(self, number: int, mail: Mail) -> None:
        if number in self.outboxes:
            self.outboxes[number].put(mail)

    def events(self, seconds: float) -> list[Event]:
        """As for every Fleet. Raise ConnectionError if Ray itself has died, and no worker can come back."""
        if self.cluster.failure:
            raise ConnectionError(self.cluster.failure)
        events = collect(self.inbox, seconds)
        for (number, news), outbox in events:
            if isinstance(news, Hello):  # only now, or mail for an earlier life would reach this one
                self.outboxes[number] = outbox
            elif isinstance(news, Lost):
                self.outboxes.pop(number, None)
        return [event for event, _ in events]

    def close(self) -> None:
        self.closing.set()
        for actor in list(self.actors.values()):
            with suppress(Exception):
                ray.kill(actor)  # which ends what its keeper waits for, unless Ray's head is gone
        for connection in list(self.connections.values()):
            hang_up(connection)
        join_all(self.keepers, CLOSE_SECONDS)
        self.cluster.close()

    def _keep(self, number: int) -> None:
        """On a thread: start a worker, talk with it, and do both again when it is lost."""
        pause = AGAIN_SECONDS
        while not self.closing.is_set():
            met = False
            try:
                if number not in self.actors:
                    self._start(number)
                actor = self.actors[number]
                address, key = ray.get(actor.listen.remote(), timeout=self.hang_seconds)
                run = actor.run.remote()
                with connect(address, key) as connection:
                    met, pause = True, AGAIN_SECONDS
                    self.connections[number] = connection
                    self._talk(number, connection)
                if self.closing.is_set():
                    return
                ray.get(run, timeout=self.hang_seconds)  # raises what has ended the process, if it has ended
            except Exception as error:
                if self.closing.is_set():
                    return
                if met:
                    log.warning("worker %d gets a new process: %s", number, describe(error))
                else:
                    self.inbox.put((Event(number, Lost(describe(error))), None))
                    pause = min(2 * pause, MOST_SECONDS)
                if actor := self.actors.pop(number, None):
                    with suppress(Exception):
                        ray.kill(actor)
            self.closing.wait(pause)

    def _start(self, number: int) -> None:
        """Start a process and have it load its model. Raise what Ray raises if it dies or takes too long."""
        actor = ray.remote(WorkerProcess).options(**self.cluster.actor_options(number)).remote()
        self.actors[number] = actor  # from here on `close` ends it, also while it loads
        here = self.ranks, self.cluster.threads(number), self.cluster.loopback
        with self.cluster.measuring():
            ray.get(actor.load.remote(self.model, self.options[number], *here), timeout=START_SECONDS)

    def _talk(self, number: int, connection: Connection) -> None:
        """Pass on messages until the connection ends. Raise TimeoutError if the worker is silent for too long."""
        reason = "its connection has ended"
        limit_reads(connection, self.hang_seconds)
        outbox: SimpleQueue[Mail] = SimpleQueue()
        try:
            with on_thread(send_from, outbox, connection, CLOSED):
                while not self.closing.is_set() and connection.poll(self.hang_seconds):
                    self.inbox.put((Event(number, connection.recv()), outbox))
                reason = f"it has been silent for {self.hang_seconds:g} s"
                raise TimeoutError(reason)
        except (EOFError, ConnectionError):
            return
        finally:
            self.inbox.put((Event(number, Lost(reason)), None))
