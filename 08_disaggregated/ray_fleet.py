"""NEW in 08: a fleet of Ray actors. Ray starts the processes, on this machine or on many, and starts dead ones anew.

What Ray does not decide: whether an actor that does not answer is dead (the router's deadline does), and what has to be
done again when one was (the router's books do). So no call is ever retried by Ray, and a call that was meant for an
actor's earlier life is refused by its next one.

This is the only file that imports ray, and nothing imports it before workers="ray" is asked for.
"""

import atexit
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before the import: the course reports to nobody
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray will do some day, and warns until then

import ray

from common.accelerate import make_engine
from common.garbage import keep_what_is_loaded
from common.loader import Loaded, load_model
from common.threads import on_a_passing_thread

from .fleet import Fleet, Reply, WorkerLost
from .orders import Hello, Order
from .station import Station
from .transport import TcpTransport

ROOT = Path(__file__).resolve().parent.parent
OBJECT_STORE_BYTES = 80 << 20  # messages are small, and pages do not pass through it: about the least that Ray takes


class Actor:
    """A worker in a process of its own. Ray calls it on one thread, call by call, and `tell` beside it on another."""

    def __init__(self, model: dict[str, Any], options: dict[str, Any], threads: int):
        import torch

        from .engine import Worker

        torch.set_num_threads(threads)
        loaded = on_a_passing_thread(lambda: load_model(**model))
        worker = on_a_passing_thread(lambda: make_engine(Worker, loaded, **options))
        keep_what_is_loaded()
        self.station = Station(worker, TcpTransport(ray.util.get_node_ip_address()))

    def call(self, incarnation: str | None, method: str, *arguments):
        """One of the station's methods; `incarnation` is which life of this actor the router believes to call."""
        if method != "hello" and incarnation != self.station.incarnation:
            raise WorkerLost("the worker was started anew, and knows nothing of what came before")
        return getattr(self.station, method)(*arguments)

    @ray.method(concurrency_group="beside")
    def tell(self, incarnation: str | None, orders: list[Order]) -> None:
        if incarnation == self.station.incarnation:
            self.station.tell(orders)

    def process(self) -> tuple[int, str]:
        """Its process and its node, for whoever wants to kill it."""
        return os.getpid(), ray.get_runtime_context().get_node_id()


class RayFleet(Fleet):
    """An actor with a Worker for each of `options`. They load the model themselves: weights do not travel."""

    depth = 2

    def __init__(self, loaded: Loaded, address: str | None, load_format: str, options: list[dict[str, Any]]):
        count = len(options)
        self.mine = not ray.is_initialized()
        if self.mine:
            start_ray(address, count)
        nodes = len(ray.nodes())
        self.place = f"Ray actors on {nodes} machine{'s' * (nodes > 1)}"
        model = {
            "name_or_path": None if loaded.name == "bundled" else loaded.name,
            "device": loaded.device.type,
            "dtype": str(loaded.dtype).removeprefix("torch."),
            "load_format": load_format,
        }
        # Every worker computes at the same time, so each gets its share of the cores. With more threads than cores a
        # step would wait for threads that wait for a core (common/threads.py).
        threads = max(1, (os.cpu_count() or 1) // count)
        environment = {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
        actor = ray.remote(concurrency_groups={"beside": 1})(Actor).options(
            num_cpus=0.01 if address is None else threads,
            num_gpus=gpu_share(count, address) if loaded.device.type == "cuda" else 0,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": environment},
        )
        self.actors = [actor.remote(model, one, threads) for one in options]
        self.incarnations: list[str | None] = [None] * count
        self.open: dict[ray.ObjectRef, int] = {}  # in order of the calls
        self.helpers: list = []  # processes that belong to a Ray of our own
        atexit.register(self.close)  # before Ray's own, which was registered earlier

    def call(self, number: int, method: str, *arguments) -> None:
        self.open[self.actors[number].call.remote(self.incarnations[number], method, *arguments)] = number

    def tell(self, number: int, orders: Sequence[Order]) -> None:
        self.actors[number].tell.remote(self.incarnations[number], orders)

    def replies(self, seconds: float) -> list[Reply]:
        if not self.open:
            return []
        ray.wait(list(self.open), timeout=seconds)
        ready = set(ray.wait(list(self.open), num_returns=len(self.open), timeout=0)[0])
        answers, blocked = [], set()
        for ref, number in list(self.open.items()):
            if ref not in ready:
                blocked.add(number)
            if number in blocked or self.open.pop(ref, None) is None:
                continue
            try:
                result = ray.get(ref)
                if isinstance(result, Hello):
                    self.incarnations[number] = result.incarnation
                    self.helpers = processes_of_ray() if self.mine else []
            except ray.exceptions.RayTaskError as error:  # the worker's own code has raised
                if isinstance(error.cause, ValueError) and self.incarnations[number] is None:
                    raise ValueError(str(error.cause)) from error
                if not isinstance(error.cause, WorkerLost):
                    print(f"worker {number} failed and is started anew: {error}", file=sys.stderr)
                    ray.kill(self.actors[number], no_restart=False)
                result = self.forget(number, error)
            except ray.exceptions.RayError as error:
                if self.incarnations[number] is None:
                    raise ValueError(f"worker {number} could not be started: {error}") from error
                result = self.forget(number, error)
            answers.append(Reply(number, result))
        return answers

    def forget(self, number: int, error: Exception) -> WorkerLost:
        """Nothing more is expected of the calls to a worker that is gone."""
        self.open = {ref: other for ref, other in self.open.items() if other != number}
        return WorkerLost(str(error))

    def kill(self, number: int) -> None:
        ray.kill(self.actors[number], no_restart=False)
        self.forget(number, WorkerLost())

    def close(self) -> None:
        atexit.unregister(self.close)
        if not ray.is_initialized():
            return
        for actor in self.actors:
            ray.kill(actor, no_restart=True)
        self.actors, self.open = [], {}
        if self.mine:
            ray.shutdown()
            for helper in self.helpers:  # Ray's agents would notice only within half a minute that it is gone
                with suppress(Exception):  # most have ended by now
                    helper.kill()


def gpu_share(count: int, address: str | None) -> float:
    """Of one GPU for each worker: all of it on a cluster, otherwise what this machine has for so many."""
    import torch

    return 1 if address else min(1.0, torch.cuda.device_count() / count)


def start_ray(address: str | None, count: int) -> None:
    """A Ray of our own in the background, or the running one at `address`. ValueError if nobody answers there."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if address is not None:
            ray.init(address, **quiet)
        else:
            sizes = {"num_cpus": max(count, os.cpu_count() or 1), "object_store_memory": OBJECT_STORE_BYTES}
            ray.init(address="local", include_dashboard=False, **sizes, **quiet)
    except ConnectionError as error:
        raise ValueError(f"there is no Ray at {address}: {error}") from error


def processes_of_ray() -> list:
    """Those that this process has started, and theirs."""
    import psutil  # comes with Ray

    return [child for child in psutil.Process().children(recursive=True) if is_rays(child)]


def is_rays(process) -> bool:
    """Whether this is a process of Ray; one that has just ended, or is somebody else's, is not."""
    with suppress(Exception):
        return "ray" in " ".join(process.cmdline())
    return False
