"""NEW in 08: a fleet of processes. Ray places and starts them, on this machine or on many, and says when one has died.

A worker is an actor whose `run` is a generator: each report that it yields is passed on as an event. Mail is a call of
`read`, which has a thread of its own. A worker lives as long as its process. When it ends or stays silent,
everything that was ordered from it is gone. Each worker has a keeper, a thread of the router's process, which then
starts the next one.

Nothing imports this file before workers="ray" is asked for.
"""

import atexit
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch

from common.acceleration.accelerate import make_engine
from common.distributed import page_transport
from common.distributed.cluster import Cluster, describe, ray
from common.loader import load_model
from common.process import freeze_loaded_objects, join_all, run_on_temporary_thread

from .engine import WorkerEngine
from .fleet import Event, Fleet
from .messages import Hello, Lost, Mail, Report
from .worker import LOOK, Worker, collect

START_SECONDS = 600.0  # for a process to start and load its model
SIGN_SECONDS = 60.0  # A process that starts or loads must give a sign of life in this time. A busy machine may need 30.
LOOK_SECONDS = 1.0  # A keeper looks around this often: if Ray's head is gone, nothing wakes it.
CLOSE_SECONDS = 5.0  # for all keepers together to notice that their workers have been ended
AGAIN_SECONDS, MAX_SECONDS = 1.0, 30.0  # pause from a worker's loss to its next start. It doubles while starts fail.

log = logging.getLogger("router")


class WorkerProcess:
    """The Ray actor. `load` and `run` have one thread, which is the engine's, and `read` has another one."""

    def __init__(self):
        self.mailbox: SimpleQueue[Mail | None] = SimpleQueue()

    def load(self, model: dict[str, Any], options: dict[str, Any], threads: int, loopback: bool) -> None:
        """Load the model and make the worker."""
        torch.set_num_threads(threads)
        loaded = run_on_temporary_thread(lambda: load_model(**model))
        engine = run_on_temporary_thread(lambda: make_engine(WorkerEngine, loaded, **options))
        self.worker = Worker(engine, page_transport(loopback), wake=partial(self.mailbox.put, LOOK))
        freeze_loaded_objects()

    @ray.method(concurrency_group="mail")
    def read(self, mail: Mail) -> None:
        """Put mail into the mailbox, where the next turn finds it."""
        self.mailbox.put(mail)

    @ray.method(concurrency_group="mail")
    def alive(self) -> bool:
        """Answer, also while the model is loaded: a process that has been stopped does not."""
        return True

    def run(self) -> Iterator[Hello | Report]:
        """Work forever."""
        yield from self.worker.run(self.mailbox)


class RayFleet(Fleet):
    """A process for each of `options`, in a Ray cluster. model: arguments of `load_model`; weights do not travel."""

    def __init__(self, model: dict[str, Any], options: list[dict[str, Any]], address: str | None, hang_seconds: float):
        self.cluster = Cluster(address, len(options), model["device"])
        self.description = self.cluster.description
        self.model, self.hang_seconds = model | {"device": self.cluster.device}, hang_seconds
        self.options = [one | {"gpu_share": self.cluster.gpu_share()} for one in options]
        self.closing = threading.Event()
        self.inbox: SimpleQueue[tuple[Event, Any]] = SimpleQueue()  # with the actor
        self.known: dict[int, Any] = {}  # the actors that the router knows of
        self.actors: dict[int, Any] = {}
        keepers = [partial(self._keep, number) for number in range(len(options))]
        self.keepers = [threading.Thread(target=keep, name="keeper", daemon=True) for keep in keepers]
        atexit.register(self.close)  # It runs before the cluster's own: nothing may ask Ray while Ray ends.
        for keeper in self.keepers:
            keeper.start()

    def send(self, number: int, mail: Mail) -> None:
        if number in self.known:
            self.known[number].read.remote(mail)

    def events(self, seconds: float) -> list[Event]:
        """As for every Fleet. Raise ConnectionError if Ray itself has died, and no worker can come back."""
        if self.cluster.failure:
            raise ConnectionError(self.cluster.failure)
        events = collect(self.inbox, seconds)
        for (number, news), actor in events:
            if isinstance(news, Hello):  # Not earlier: mail for the worker's previous life would reach this one.
                self.known[number] = actor
            elif isinstance(news, Lost):
                self.known.pop(number, None)
        return [event for event, _ in events]

    def close(self) -> None:
        atexit.unregister(self.close)
        if self.closing.is_set():
            return
        self.closing.set()
        for actor in list(self.actors.values()):
            with suppress(Exception):
                ray.kill(actor)  # Then its keeper's wait ends, too, unless Ray's head is gone.
        join_all(self.keepers, CLOSE_SECONDS)
        self.cluster.close()

    def _keep(self, number: int) -> None:
        """Start a process, pass on what it says until it ends, and start the next one: the work of a thread."""
        pause = AGAIN_SECONDS
        while not self.closing.is_set():
            try:
                actor = self._start(number)
                stream = actor.run.options(num_returns="streaming").remote()
                heard = time.monotonic()
                while time.monotonic() - heard < self.hang_seconds and not self.closing.is_set():
                    if ray.wait([stream], timeout=LOOK_SECONDS)[0]:
                        self.inbox.put((Event(number, ray.get(next(stream))), actor))
                        heard, pause = time.monotonic(), AGAIN_SECONDS
                reason = f"it has been silent for {self.hang_seconds:g} s"
            except Exception as error:  # The process has failed, or Ray has.
                reason = describe(error)
            self.inbox.put((Event(number, Lost(reason)), None))
            if actor := self.actors.pop(number, None):
                with suppress(Exception):
                    ray.kill(actor)
            self.closing.wait(pause)
            pause = min(2 * pause, MAX_SECONDS)

    def _start(self, number: int) -> Any:
        """Start a process and have it load its model. Raise what Ray raises if it dies, hangs or takes too long."""
        make = ray.remote(concurrency_groups={"mail": 1})(WorkerProcess)
        actor = make.options(**self.cluster.actor_options(number)).remote()
        self.actors[number] = actor  # from here on `close` ends it, also while it loads
        here = self.cluster.threads(number), self.cluster.loopback
        with self.cluster.measuring():
            loading = actor.load.remote(self.model, self.options[number], *here)
            give_up = time.monotonic() + START_SECONDS
            while not ray.wait([loading], timeout=LOOK_SECONDS)[0] and time.monotonic() < give_up:
                if self.closing.is_set():  # `close` may have come before it could see the actor.
                    break
                try:
                    ray.get(actor.alive.remote(), timeout=SIGN_SECONDS)
                except TimeoutError as error:
                    raise TimeoutError(f"no sign of life for {SIGN_SECONDS:g} s: is the machine too busy?") from error
            ray.get(loading, timeout=0)
        return actor
