"""A Ray cluster with a place for each worker: a Ray of our own on this machine, or a running one at an address.

Ray starts processes, places them on machines and notices their end. This module adds what Ray leaves open:

- Linux ends Ray's processes when the *thread* that started them ends, not only with its process. So Ray is started on a
  thread that lives until `close`.
- A Ray of our own is for this process alone: it listens on loopback and takes only calls with its secret token.
- Ray aborts a process 60 seconds after it has lost the head of its cluster, or if it finds none. So another process
  tries an address first, and a thread watches the head and sets `failure` when it is lost.
- Ray's workers import code from the driver's directory first. Here they import the course's.
- Ray's workers have a low priority (niceness 15) and starve beside any other program. In a Ray of our own they have the
  priority of this process.

This module imports ray. Import it only when workers under Ray are needed.
"""

import atexit
import math
import secrets
import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..errors import InvalidInput, counted
from ..process import start
from .joining import end_processes, find_head, join_ray, start_ray

START_SECONDS = 90.0  # for a Ray of our own to start
JOIN_SECONDS = 15.0  # for this process to join that Ray
PLACE_SECONDS = 12.0  # for all workers to get their GPUs and cores
LOOK_SECONDS = 2.0  # from one look at the head to the next
SILENCE_SECONDS = 10.0  # a head that does not answer for this long counts as lost
OWN_SECONDS = 3.0  # for a Ray of our own to end by itself, before its processes are killed
CLOSE_SECONDS = 10.0  # for this process to leave Ray; if the head is gone, Ray waits for it for 5
OWN_CORES = 0.01  # cores that a worker reserves in a Ray of our own: any number of workers share this machine


class Cluster:
    """Join a Ray and reserve places for `count` workers, spread over its machines. A process has one at a time.

    address: host:port of a running Ray; None starts one. In a running Ray each worker reserves a core. If there are
    fewer GPUs than workers, workers share them. device: "auto", "cuda" or "cpu". Raise InvalidInput if the address has
    no Ray, or the cluster too few resources. The cluster ends with `close`, or with the process.
    """

    def __init__(self, address: str | None, count: int, device: str = "auto"):
        if device not in ("auto", "cuda", "cpu"):
            raise InvalidInput(f"workers under Ray cannot run on {device!r}: use auto, cuda or cpu")
        if ray.is_initialized():
            raise InvalidInput("this process has joined a Ray already: close the engine that uses it first")
        if address is not None:
            find_head(address)
        self.loopback = address is None  # a Ray of our own, whose workers need not reach other machines
        self.failure: str | None = None  # a sentence, once Ray is lost
        self._token = secrets.token_hex(32)  # of a Ray of our own
        self._group: PlacementGroup | None = None
        self._measuring = threading.Lock()
        self._closing: Future[None] = Future()
        self._joined: Future[None] = Future()
        self._thread = threading.Thread(target=self._hold, args=(address, count, device), name="ray", daemon=True)
        atexit.register(self.close)  # It runs before Ray's own, which was registered earlier.
        try:
            self._thread.start()
            self._wait_until_joined(address)
        except BaseException:
            self.close()
            raise

    @property
    def description(self) -> str:
        return f"Ray actors on {counted(len(set(self._places)), 'machine')}"

    def actor_options(self, number: int) -> dict[str, Any]:
        """Return the arguments of ActorClass.options for worker `number`: Ray neither restarts it nor repeats calls."""
        threads = str(self.threads(number))
        return {
            "num_cpus": self._bundle["CPU"],
            "num_gpus": self._bundle.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number),
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}},
            "max_restarts": 0,
            "max_task_retries": 0,
        }

    def threads(self, number: int) -> int:
        """Return the number of threads of worker `number`: its share of its machine's cores.

        The workers of a machine compute at the same time, and more threads than cores would wait for each other
        (common/process.py).
        """
        node = self._places[number]
        return max(1, int(self._cores.get(node, 1)) // self._places.count(node))

    def gpu_share(self) -> float:
        """Return the share of a GPU's memory that one worker may fill: 1.0 if workers do not share GPUs."""
        return 1.0 / self._workers_per_gpu

    def measuring(self) -> AbstractContextManager:
        """Return the context in which a worker loads: one at a time, if workers share GPUs.

        Each must have its memory before the next one measures what is free. Other programs may use the GPU, too.
        """
        return self._measuring if self._workers_per_gpu > 1 else nullcontext()

    def close(self) -> None:
        """Leave the cluster, which ends the workers, and end all processes of a Ray of our own. Idempotent."""
        atexit.unregister(self.close)
        if self._closing.done():
            return
        self._closing.set_result(None)
        wait([self._joined], CLOSE_SECONDS)  # Ray aborts a process that loses the head while it joins
        if self._joined.done():
            self._thread.join(OWN_SECONDS if self.loopback else CLOSE_SECONDS)
        if self.loopback:
            end_processes(self._token)  # without the head, workers would run for another minute
            if self._joined.done():
                self._thread.join(CLOSE_SECONDS)

    def _hold(self, address: str | None, count: int, device: str) -> None:
        """Join Ray, reserve places and wait for `close`: Ray's processes end with the thread that runs this method.

        While another thread still asks Ray for something, its shutdown may end this process with status 1. So all that
        comes before the workers is asked here.
        """
        try:
            if address is None:
                start_ray(self._token)
            else:
                join_ray(address)
            context = ray.get_runtime_context()
            self._head, self._node = context.gcs_address, context.get_node_id()
            self.device, self._bundle, self._workers_per_gpu = plan(living_nodes(), count, device, self.loopback)
            self._reserve(count)
        except BaseException as error:
            self._joined.set_exception(error)
        else:
            self._joined.set_result(None)
            self._watch()
        wait([self._closing])
        ray.shutdown()  # ends what this process has reserved and started in a running Ray, too

    def _wait_until_joined(self, address: str | None) -> None:
        seconds = START_SECONDS if address is None else JOIN_SECONDS
        what = "starting a Ray of our own" if address is None else f"joining the Ray at {address}"
        wait([self._joined], seconds + PLACE_SECONDS)
        if self._closing.done():
            raise InvalidInput("this process ends while its workers start")
        if not self._joined.done():
            advice = "try again" if address is None else f"add this machine to it: ray start --address={address}"
            raise InvalidInput(f"{what} took longer than {seconds:.0f} seconds: {advice}")
        if error := self._joined.exception():
            if isinstance(error, InvalidInput):
                raise error
            raise InvalidInput(f"{what} failed: {error}") from error

    def _reserve(self, count: int) -> None:
        """Reserve a bundle of resources for each worker. Raise InvalidInput if other programs use them."""
        group = placement_group([self._bundle] * count, strategy="SPREAD")
        if not group.wait(PLACE_SECONDS):
            free = {kind: ray.available_resources().get(kind, 0) for kind in self._bundle}
            raise InvalidInput(f"{too_small(living_nodes(), count, self._bundle)}, of which {amounts(free)} are free")
        self._places = [""] * count  # the node of each worker
        self._cores: dict[str, float] = {}  # by node
        self._group = group
        self._look()

    def _look(self) -> None:
        """Ask the head for the nodes of all workers. If the head is lost, block or raise an exception."""
        cores = {node["NodeID"]: node["Resources"].get("CPU", 1) for node in living_nodes()}
        if self._node not in cores:
            raise ConnectionError("the node on this machine is dead")
        if self._group is not None:
            nodes = placement_group_table(self._group)["bundles_to_node_id"]
            self._cores |= cores
            # While Ray looks for a new node for a bundle whose node has died, keep the last one.
            self._places = [nodes.get(number) or place for number, place in enumerate(self._places)]

    def _watch(self) -> None:
        """Look at the head until it is lost, or `close` is called. Each look has a thread: it may block forever."""
        while not wait([self._closing], LOOK_SECONDS).done:
            looking, _ = start(self._look)
            for _ in range(2):  # after a pause of the whole process, the first wait ends at once
                wait([looking, self._closing], SILENCE_SECONDS / 2, FIRST_COMPLETED)
            error = looking.exception() if looking.done() else f"no answer for {SILENCE_SECONDS:.0f} seconds"
            if error and not self._closing.done():
                self.failure = f"Ray's head at {self._head} is lost: {error}"
                return


def describe(error: Exception) -> str:
    """Return one line on what has ended an actor."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[0] if isinstance(cause, (InvalidInput, OSError)) else f"{type(cause).__name__}: {lines[0]}"


def living_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def plan(nodes: list[dict], count: int, device: str, mine: bool) -> tuple[str, dict[str, float], int]:
    """Return the device, the resources of each worker's bundle, and the number of workers that share a GPU.

    Raise InvalidInput if the nodes have less in total, whether others use it or not.
    """
    gpus = sum(int(node["Resources"].get("GPU", 0)) for node in nodes)
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    bundle: dict[str, float] = {"CPU": OWN_CORES if mine else 1}
    sharing = math.ceil(count / gpus) if device == "cuda" and gpus else 1
    if device == "cuda":
        bundle["GPU"] = math.floor(10_000 / sharing) / 10_000  # Ray's unit is 1/10,000
    room = [min(int(node["Resources"].get(kind, 0) / each) for kind, each in bundle.items()) for node in nodes]
    if sum(room) < count:
        raise InvalidInput(too_small(nodes, count, bundle))
    return device, bundle, sharing


def too_small(nodes: list[dict], count: int, bundle: dict[str, float]) -> str:
    """Return a sentence with the resources that the workers need and those of the nodes."""
    each = [amounts({kind: node["Resources"].get(kind, 0) for kind in bundle}) for node in nodes]
    machines = f"{counted(len(nodes), 'machine')} with {'; '.join(each)}"
    return f"{count} workers need {amounts(bundle)} each, on one machine, and Ray has {machines}"


def amounts(resources: dict[str, float]) -> str:
    """Return "2 GPUs, 8 CPUs" for {"CPU": 8, "GPU": 2}."""
    return ", ".join(f"{value:g} {kind}{'s' * (value != 1)}" for kind, value in sorted(resources.items(), reverse=True))
