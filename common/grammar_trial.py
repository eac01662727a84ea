"""Trials of grammars in processes of their own: what takes too long there, or crashes, harms no answer.

A schema is a program that a client sends, and compiling it is not bounded by its size: `multipleOf: 1000003` takes ten
seconds, and some hold the interpreter's lock. So each new form is made and tried out by a process, which is stopped
after some seconds. What it accepts is compiled again where it is used.
"""

import asyncio
import json
import pickle
import sys
from collections.abc import Callable

from .errors import InvalidInput
from .grammars import compile_grammar, library, try_out
from .stages import ROOT

SECONDS = 5  # for a process, from its start
AT_ONCE = 2  # processes
KEPT = 64  # results


class Trials:
    """The forms that clients have sent lately, each tried out once."""

    def __init__(self):
        self.results: dict[bytes, asyncio.Task] = {}  # by the pickled form, the oldest first
        self.turn = asyncio.Semaphore(AT_ONCE)

    async def grammar(self, form: Callable[[], str]) -> str:
        """Return the grammar that a form makes, a function of `grammars` with its arguments. Raise InvalidInput."""
        key = pickle.dumps(form)
        if key not in self.results:
            ended = [key for key, task in self.results.items() if task.done()]
            for old in ended[: len(self.results) + 1 - KEPT]:
                del self.results[old]
            self.results[key] = asyncio.create_task(self._try_out(key))
        # Others may wait for the same form, so a client that leaves stops nothing.
        result = await asyncio.shield(self.results[key])
        if "error" in result:
            raise InvalidInput(result["error"])
        return result["grammar"]

    async def _try_out(self, form: bytes) -> dict[str, str]:
        command, pipe = [sys.executable, "-m", __name__], asyncio.subprocess.PIPE
        async with self.turn:
            # In a session of its own, since Ctrl-C is for the server.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, cwd=ROOT, start_new_session=True
            )
            try:
                output, _ = await asyncio.wait_for(process.communicate(form), SECONDS)
            except asyncio.TimeoutError:
                return {"error": f"the answer's form takes more than {SECONDS} s to compile: simplify it"}
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        return json.loads(output) if output else {"error": "the answer's form cannot be compiled: simplify it"}


def main() -> None:
    """Make the grammar of the form on standard input, try it out with bytes as tokens, and print the result as JSON."""
    try:
        grammar = pickle.load(sys.stdin.buffer)()
        try_out(compile_grammar(grammar, library().LLTokenizer("byte")))
        print(json.dumps({"grammar": grammar}))
    except InvalidInput as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main()
