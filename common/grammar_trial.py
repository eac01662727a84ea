"""Trials of grammars in separate processes: a grammar that takes too long there, or crashes, harms no answer.

A schema is a program that a client sends, and compiling it is not bounded by its size: `multipleOf: 1000003` takes ten
seconds, and some hold the interpreter's lock. So each new form is made and tried out by a process with a limit of
processor time, which a busy machine does not shorten. What it accepts is compiled again where it is used.
"""

import asyncio
import json
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress

from .errors import InvalidInput, QueueFull
from .grammars import TOO_DEEP, compile_grammar, library, try_out
from .stages import ROOT

SECONDS = 5  # of processor time, for a process
MAX_SECONDS = 60  # seconds by the clock, for systems without a limit of processor time (Windows)
AT_ONCE = 2  # processes
MAX_NEW = 32  # waiting forms, also of clients that have left: the last one waits 80 s if each takes SECONDS
KEPT = 64  # results


class Trials:
    """The forms that clients have sent lately, each tried out once. vocab_size: forms may name token ids below it."""

    def __init__(self, vocab_size: int = 256):
        self.vocab_size = vocab_size
        self.results: dict[bytes, asyncio.Task] = {}  # by the pickled form, the oldest first
        self.turn = asyncio.Semaphore(AT_ONCE)

    async def grammar(self, form: Callable[[], str]) -> str:
        """Return the grammar that a form makes, a function of `grammars` with its arguments.

        Raise InvalidInput if it makes none, and QueueFull for a new one if too many others wait.
        """
        try:
            key = pickle.dumps(form)
        except RecursionError as error:
            raise InvalidInput(TOO_DEEP) from error
        known = self.results.get(key)
        if known is None or (known.done() and known.exception()):  # No process could be started for it.
            if sum(not task.done() for task in self.results.values()) >= MAX_NEW:
                raise QueueFull("too many new forms of answers at once: try again later")
            if len(self.results) >= KEPT:
                ended = (key for key, task in self.results.items() if task.done())
                self.results.pop(next(ended, None), None)
            self.results[key] = asyncio.create_task(self._try_out(key))
        # Others may wait for the same form, so a client that leaves stops nothing.
        result = await asyncio.shield(self.results[key])
        if "error" in result:
            raise InvalidInput(result["error"])
        return result["grammar"]

    async def _try_out(self, form: bytes) -> dict[str, str]:
        command, pipe = [sys.executable, "-m", __name__, str(SECONDS), str(self.vocab_size)], asyncio.subprocess.PIPE
        async with self.turn:
            # The process has its own session, since Ctrl-C is for the server.
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=pipe, stdout=pipe, cwd=ROOT, start_new_session=True
                )
            except OSError as error:  # no memory, or too many open files or processes
                raise QueueFull(f"no process can be started for the form ({error}): try again later") from error
            try:
                output, _ = await asyncio.wait_for(process.communicate(form), MAX_SECONDS)
            except asyncio.TimeoutError:
                output = b""
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if not output:  # stopped, or crashed
            return {"error": f"the answer's form cannot be compiled within {SECONDS} s: simplify it"}
        return json.loads(output)


class Bytes:
    """A tokenizer for llguidance: each byte is a token. Further ones have no text, and the last one ends an answer."""

    bos_token_id = None

    def __init__(self, vocab_size: int):
        self.tokens = [bytes([i]) for i in range(256)] + [b""] * (vocab_size - 256) + [b"<end>"]
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def main() -> None:
    """Make the grammar of the form on standard input, try it out with bytes as tokens, and print the result as JSON.

    The first argument is the limit of processor time in seconds, where the system ends the process; the second is the
    size of the vocabulary.
    """
    with suppress(ModuleNotFoundError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1])))
    try:
        grammar = pickle.load(sys.stdin.buffer)()
        try_out(compile_grammar(grammar, library().LLTokenizer(library().TokenizerWrapper(Bytes(int(sys.argv[2]))))))
        print(json.dumps({"grammar": grammar}))
    except InvalidInput as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main()
