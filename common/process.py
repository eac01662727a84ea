"""Threads and garbage collection of a process that serves.

Threads: on a CPU, OpenMP gives each thread that computes its own team of workers. Between two operations the workers
spin, ready at once, as long as all teams together have no more workers than the machine has cores. Beyond that they
sleep, and waking them costs more than most operations of a small model. So a program that loads its model on one thread
and runs it on another is slower than it needs to be. A team ends with its thread: work outside the engine's thread runs
on a temporary one.

Garbage: from time to time Python's collector visits all objects in search of unused cycles. With torch, transformers
and a model loaded these are about 400,000; a visit takes about 0.2 s, in which no request gains a token, and finds no
garbage among them.
"""

import atexit
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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


def freeze_loaded_objects() -> None:
    """Exempt every object that exists now from garbage collection (as vLLM's servers do)."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # or libraries that count their objects at exit report leaks
