"""What a process that serves has to arrange about its threads and its garbage collector.

Threads: on a CPU, OpenMP gives every thread that computes a team of workers of its own. Between two operations the
workers wait in a loop, ready at once, but only as long as all teams together have no more workers than the machine has
cores; otherwise they sleep, and waking them costs more than most operations of a small model. So a program that loads
its model on one thread and runs it on another is slower than it could be. A team ends with its thread: whatever
computes beside the engine does so on a temporary thread.

Garbage: now and then Python's collector visits every object there is, in search of unused cycles. With torch,
transformers and a model loaded these are some 400,000, and a visit takes about 0.2 s, in which no token comes. None of
them is garbage.
"""

import atexit
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def run_on_temporary_thread(function: Callable[..., Result], *arguments) -> Result:
    """Return the function's result, or raise its exception. Ctrl-C does not wait for the thread."""
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
    atexit.register(gc.unfreeze)  # or libraries that count what is left at the end report leaks
