"""How fast do pages get from one process to another on this machine, by which way?

    python -m common.bench.experiments.transports --json 08_disaggregated/results/transports/NAME.json

What is moved are pages of the bundled model in float32, picked at random from one pool, into pages of another, in a
process of its own. Each way is given the medians of 30 times. `copy` is the same within one process, one copy out of
the pages and one into others.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory
from multiprocessing.connection import Connection

os.environ["OMP_NUM_THREADS"] = "1"  # a process has one core
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy
import torch
import torch.distributed

from common.distributed.tcp_transport import TcpTransport

from ..experiment import run_experiment
from ..harness import Figures
from ..settings import Settings
from ..timing import median_seconds

POOL, PAGE = 1024, (2, 8, 16, 2, 64)  # pages; K and V, layers, tokens, heads, dimension
COUNTS = [7, 63, 250]  # pages: prompts of about 100, 1,000 and 4,000 tokens
TIMES = 30


def pool(pages: int = POOL) -> numpy.ndarray:
    return numpy.ones((2, 8, pages, *PAGE[2:]), numpy.float32)


def places(count: int) -> numpy.ndarray:
    return numpy.random.default_rng(count).permutation(POOL)[:count]


def timed(move: Callable[[int], None]) -> list[float]:
    """Return milliseconds for each of COUNTS."""
    return [1e3 * median_seconds(move, torch.device("cpu"), [(count,)], repeats=TIMES) for count in COUNTS]


@contextmanager
def beside(sender: Callable, *arguments) -> Iterator[Connection]:
    """Run sender(connection, *arguments) in a process of its own, until it receives None when the block ends.

    Give this end of the connection.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=sender, args=(theirs, *arguments), daemon=True)
    process.start()
    yield ours
    ours.send(None)
    process.join()


def copy() -> list[float]:
    source, target = pool(), pool()

    def move(count: int) -> None:
        target[:, :, places(count)] = source[:, :, places(count)]

    return timed(move)


def tcp() -> list[float]:
    """Time what stage 08 uses."""
    with beside(tcp_sender) as connection:
        tickets, receiver = connection.recv(), TcpTransport()
        receiver.register(list(torch.from_numpy(pool())))

        def move(count: int) -> None:
            transfer = receiver.receive(tickets[count], 0, places(count).tolist())
            transfer.wait(10)
            assert transfer.done()

        return timed(move)


def tcp_sender(connection: Connection) -> None:
    transport = TcpTransport()
    transport.register(list(torch.from_numpy(pool())))
    connection.send({count: transport.send(str(count), places(count).tolist()) for count in COUNTS})
    connection.recv()


def memory() -> list[float]:
    target = pool()
    shared = shared_memory.SharedMemory(create=True, size=target.nbytes)
    with beside(memory_sender, shared.name) as connection:

        def move(count: int) -> None:
            connection.send(count)
            connection.recv()
            target[:, :, places(count)] = numpy.ndarray((2, 8, count, *PAGE[2:]), numpy.float32, shared.buf)

        result = timed(move)
    shared.close()
    shared.unlink()
    return result


def memory_sender(connection: Connection, name: str) -> None:
    source, shared = pool(), shared_memory.SharedMemory(name)
    for count in iter(connection.recv, None):
        numpy.ndarray((2, 8, count, *PAGE[2:]), numpy.float32, shared.buf)[:] = source[:, :, places(count)]
        connection.send(count)
    shared.close()


def gloo() -> list[float]:
    target = pool()
    with tempfile.TemporaryDirectory() as folder, beside(gloo_sender, f"{folder}/store") as connection:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=2)

        def move(count: int) -> None:
            connection.send(count)
            staged = torch.from_numpy(pool(count))
            torch.distributed.recv(staged, 1)
            target[:, :, places(count)] = staged.numpy()

        result = timed(move)
    torch.distributed.destroy_process_group()
    return result


def gloo_sender(connection: Connection, store: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=1, world_size=2)
    source = pool()
    for count in iter(connection.recv, None):
        torch.distributed.send(torch.from_numpy(numpy.ascontiguousarray(source[:, :, places(count)])), 0)
    torch.distributed.destroy_process_group()


class Sender:
    def __init__(self):
        self.pages = pool()

    def get(self, count: int) -> numpy.ndarray:
        return self.pages[:, :, places(count)]


def object_store() -> list[float]:
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=2, object_store_memory=256 << 20, **quiet)
    try:
        sender, target = ray.remote(Sender).remote(), pool()

        def move(count: int) -> None:
            target[:, :, places(count)] = ray.get(sender.get.remote(count))

        return timed(move)
    finally:
        ray.shutdown()


def measure(settings: Settings) -> Figures:
    ways = {"copy": copy, "shared memory": memory, "tcp": tcp, "gloo": gloo, "object store of Ray": object_store}
    return {"page_bytes": pool(1).nbytes, "pages": COUNTS, "ms": {name: way() for name, way in ways.items()}}


if __name__ == "__main__":
    sys.exit(run_experiment(measure))
