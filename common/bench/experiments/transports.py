"""How fast do pages get from one process to another on this machine, by which way?

    python -m common.bench.experiments.transports --json 08_disaggregated/results/transports/NAME.json

What is moved are pages of the bundled model in float32, picked at random from one pool, into pages of another, in a
process of its own. Each way is given the medians of 30 times. `copy` is the same within one process, one copy out of
the pages and one into others.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # a process has one core
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy
import torch

from common.distributed.tcp_transport import TcpTransport

from ..documents import write_json
from ..hardware import hardware

POOL, PAGE = 1024, (2, 8, 16, 2, 64)  # pages; K and V, layers, tokens, heads, dimension
COUNTS = [7, 63, 250]  # pages: prompts of about 100, 1,000 and 4,000 tokens
TIMES = 30


def pool() -> numpy.ndarray:
    return numpy.ones((2, 8, POOL, *PAGE[2:]), numpy.float32)


def places(count: int) -> numpy.ndarray:
    return numpy.random.default_rng(count).permutation(POOL)[:count]


def timed(move: Callable[[int], None]) -> list[float]:
    """Return milliseconds for each of COUNTS."""
    medians = []
    for count in COUNTS:
        seconds = []
        for _ in range(TIMES + 3):  # the first ones are slower
            start = time.perf_counter()
            move(count)
            seconds.append(time.perf_counter() - start)
        medians.append(1e3 * statistics.median(seconds[3:]))
    return medians


def copy() -> list[float]:
    source, target = pool(), pool()

    def move(count: int) -> None:
        target[:, :, places(count)] = source[:, :, places(count)]

    return timed(move)


def tcp_sender(queue, done) -> None:
    transport = TcpTransport()
    transport.register(list(torch.from_numpy(pool())))
    queue.put({count: transport.send(str(count), places(count).tolist()) for count in COUNTS})
    done.wait()


def tcp(context) -> list[float]:
    """Time what stage 08 uses."""
    queue, done = context.Queue(), context.Event()
    sender = context.Process(target=tcp_sender, args=(queue, done))
    sender.start()
    tickets, receiver = queue.get(), TcpTransport()
    receiver.register(list(torch.from_numpy(pool())))

    def move(count: int) -> None:
        transfer = receiver.receive(tickets[count], 0, places(count).tolist())
        transfer.wait(10)
        assert transfer.done()

    result = timed(move)
    done.set()
    sender.join()
    return result


def memory_sender(queue, name: str) -> None:
    source, memory = pool(), shared_memory.SharedMemory(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        queue.put(server.getsockname())
        connection, _ = server.accept()
        while count := int.from_bytes(connection.recv(4), "big"):
            numpy.ndarray((2, 8, count, *PAGE[2:]), numpy.float32, memory.buf)[:] = source[:, :, places(count)]
            connection.sendall(b"!")
    memory.close()


def memory(context) -> list[float]:
    target, queue = pool(), context.Queue()
    shared = shared_memory.SharedMemory(create=True, size=target.nbytes)
    sender = context.Process(target=memory_sender, args=(queue, shared.name))
    sender.start()
    with socket.create_connection(queue.get()) as connection:

        def move(count: int) -> None:
            connection.sendall(count.to_bytes(4, "big"))
            connection.recv(1)
            target[:, :, places(count)] = numpy.ndarray((2, 8, count, *PAGE[2:]), numpy.float32, shared.buf)

        result = timed(move)
        connection.sendall(bytes(4))
    sender.join()
    shared.close()
    shared.unlink()
    return result


def gloo_end(rank: int, store: str, queue) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    pages = pool()

    def move(count: int) -> None:
        if rank:
            dist.send(torch.from_numpy(numpy.ascontiguousarray(pages[:, :, places(count)])), 0)
            dist.recv(torch.zeros(1), 0)
        else:
            staged = torch.empty((2, 8, count, *PAGE[2:]))
            dist.recv(staged, 1)
            pages[:, :, places(count)] = staged.numpy()
            dist.send(torch.zeros(1), 1)

    result = timed(move)
    if rank == 0:
        queue.put(result)


def gloo(context) -> list[float]:
    queue, store = context.Queue(), f"/tmp/transports-{os.getpid()}"
    ends = [context.Process(target=gloo_end, args=(rank, store, queue)) for rank in range(2)]
    for end in ends:
        end.start()
    result = queue.get(timeout=60)
    for end in ends:
        end.join()
    return result


class Sender:
    def __init__(self):
        self.pages = pool()

    def get(self, count: int) -> numpy.ndarray:
        return self.pages[:, :, places(count)]


class Receiver:
    def measure(self, sender) -> list[float]:
        import ray

        target = pool()

        def move(count: int) -> None:
            target[:, :, places(count)] = ray.get(sender.get.remote(count))

        return timed(move)


def object_store() -> list[float]:
    import ray

    root = str(Path(__file__).resolve().parents[3])
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    quiet |= {"runtime_env": {"env_vars": {"PYTHONPATH": root}}}
    ray.init("local", num_cpus=2, object_store_memory=256 << 20, **quiet)
    try:
        return ray.get(ray.remote(Receiver).remote().measure.remote(ray.remote(Sender).remote()))
    finally:
        ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser("python -m common.bench.experiments.transports", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ways = {"copy": copy(), "shared memory": memory(context), "tcp": tcp(context), "gloo": gloo(context)}
    ways["object store of Ray"] = object_store()
    page_bytes = 4 * int(numpy.prod(PAGE))
    document = {"benchmark": "common.bench.experiments.transports", "hardware": hardware(torch.device("cpu"))}
    print(write_json(args.json, document | {"page_bytes": page_bytes, "pages": COUNTS, "ms": ways}))


if __name__ == "__main__":
    from common.bench.experiments import transports  # a name by which other processes can unpickle

    sys.exit(transports.main())
