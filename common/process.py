"""Threads and garbage collection of a process that serves.

Threads: on a CPU, OpenMP gives each thread that computes its own team of workers. Between two operations the workers
spin, ready at once, as long as all teams together have no more workers than the machine has cores. Beyond that they
sleep, and waking them costs more than most operations of a small model. So a program that loads its model on one thread
and runs it on another is slower than it needs to be. A team ends with its thread: work outside the engine's thread runs
on a temporary one.

Garbage: from time to time Python's collector visits all objects in search of unused cycles. With torch, transformers
and a model loaded these are about 400,000; a visit takes about 0.2 s, in which no request gains a token, and finds no
garbage among them.

Memory: glibc returns large pieces to the system when they are freed, and the system clears each page of them again when
it is next used. The tensors of a step with many tokens are such pieces, and they are as large in the next one.
"""

import atexit
import ctypes
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

STAT = Path("/proc/stat")  # processor time of all programs, on Linux
# Numbers of malloc.h. M_TRIM_THRESHOLD, M_MMAP_THRESHOLD: the sizes in bytes from which memory goes back to the system.
# M_TOP_PAD: the reserve of a heap; without it, the heaps of all threads but the first end whenever they are empty.
MALLOC_OPTIONS = {-1: 2**31 - 1, -3: 2**30, -2: 2**26}
Result = TypeVar("Result")


def run_on_temporary_thread(function: Callable[..., Result], *arguments) -> Result:
    """Run the function on a new thread; return its result or raise its exception. Ctrl-C does not wait for it."""
    future, thread = start(function, *arguments)
    result = future.result()
    thread.join()
    return result


def start(function: Callable[..., Result], *arguments) -> tuple["Future[Result]", threading.Thread]:
    """Start the function on a daemon thread; return its future and the thread."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return future, thread


def free_port() -> int:
    """Return a port of this machine on which nothing listens now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def join_all(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Wait until all threads have ended, for at most `seconds` in total."""
    give_up = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))


def return_freed_memory() -> None:
    """Let the C library return the memory that it has kept: while a model loads, each copy has another size."""
    with suppress(TypeError, AttributeError):  # Windows; no such function
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed tensors for the next ones. Only glibc has these settings."""
    with suppress(TypeError, AttributeError):  # Windows; no such function
        set_option = ctypes.CDLL(None).mallopt
        for option, value in MALLOC_OPTIONS.items():
            set_option(option, value)


class FreeCores:
    """How many cores other programs leave to this one, by the processor time that they took since the last look.

    Threads that share an operation wait for the slowest. On two cores, beside one program that computes, two threads
    therefore do a quarter to a third of what one does (passes of the bundled model with 8 and 32 tokens).
    """

    LOOK_SECONDS = 0.1  # a clock tick of /proc/stat is 0.01 s, so that half a core is five of them
    MAX_SHARE = 0.005  # of the time, at most, for looking: /proc/stat has a line for each core

    def __init__(self):
        self.seen: tuple[float, float] | None = None  # time of the last look; seconds that others had taken by then
        self.count, self.wait = os.cpu_count() or 1, self.LOOK_SECONDS

    def look(self) -> int:
        """Return the cores that were free over the last LOOK_SECONDS or longer, at least 1; where there is no
        /proc/stat, all of them."""
        now = time.monotonic()
        if STAT.exists() if self.seen is None else now - self.seen[0] >= self.wait:
            usable = {f"cpu{i}" for i in os.sched_getaffinity(0)}
            lines = (line.split() for line in STAT.read_text().splitlines())
            # user, nice, system, idle, iowait, irq, softirq
            busy = [sum(map(int, [*times[:3], *times[5:7]])) for name, *times in lines if name in usable]
            others = sum(busy) / os.sysconf("SC_CLK_TCK") - time.process_time()
            if self.seen is not None:
                taken = (others - self.seen[1]) / (now - self.seen[0])
                self.count = max(1, len(usable) - round(taken))
            self.seen = now, others
            self.wait = max(self.LOOK_SECONDS, (time.monotonic() - now) / self.MAX_SHARE)
        return self.count


def freeze_loaded_objects() -> None:
    """Exempt every object that exists now from garbage collection (as vLLM's servers do)."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # Otherwise libraries that count their objects at exit report leaks.
