"""Computing on a thread that ends, so that it does not slow down the thread that goes on.

On a CPU, OpenMP gives every thread that computes a team of workers of its own. Between two operations they wait in a
loop, ready at once, but only as long as all teams together have no more workers than the machine has cores; otherwise
they sleep, and waking them costs more than most operations of a small model. So a program that loads its model on one
thread and runs it on another is slower than it could be. A team ends with its thread: whatever computes
beside the engine does so on a thread that passes away.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def on_a_passing_thread(function: Callable[..., Result], *arguments) -> Result:
    """Its result, or its exception. Ctrl-C does not wait for it."""
    future, thread = start(function, *arguments)
    result = future.result()
    thread.join()
    return result


def start(function: Callable[..., Result], *arguments) -> tuple["Future[Result]", threading.Thread]:
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return future, thread
