"""Errors that users see as one sentence, and the words of error messages that all modules share."""

import os
import sys
from pathlib import Path

SHORT = 100  # characters


class InvalidInput(ValueError):
    """What a user or a client asks for is refused. The message says in one sentence what is wrong and what to do.

    Only this error is shown without a traceback, and answered with 400. Any other ValueError is a fault in the code.
    """


class ContextExceeded(InvalidInput):
    """A request needs more tokens than the model's context has."""

    code = "context_length_exceeded"  # in OpenAI's API


class QueueFull(Exception):
    """The server has as many open requests or new forms as it takes, or could not keep a promise: try again later."""

    status, headers = 429, {"Retry-After": "1"}


def context_exceeded(context: int, why: str) -> ContextExceeded:
    """Return the error in OpenAI's and vLLM's words, by which clients notice that they have to shorten a history."""
    return ContextExceeded(f"This model's maximum context length is {context} tokens. However, {why}")


def expect_writable(path: Path) -> None:
    """Raise InvalidInput if no file can be written at `path`: asked before minutes of work, not after."""
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder: name a file in it")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InvalidInput(f"{folder} is no folder that can be written to: name another one")


def counted(number: int, noun: str) -> str:
    """Return "1 slot", "2 slots": for nouns with a regular plural."""
    return f"{number} {noun}{'s' * (number != 1)}"


def shortened(value: object) -> str:
    """Return a client's value for an error message, cut to SHORT characters: it may be a megabyte long."""
    text = str(value) if isinstance(value, Exception) else repr(value[:SHORT] if isinstance(value, str) else value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def require(where: Path | str, holds: bool, field: str, value, supported: str) -> None:
    """Raise InvalidInput unless `holds`. It names the file, the field, its value and the supported values."""
    if not holds:
        raise InvalidInput(f"{where}: {field}={shortened(value)} is not supported; supported is {supported}")


def first_sentence(error: Exception) -> str:
    """Return the first sentence of a library's error, on one line and without the advice that often follows."""
    return " ".join(str(error).split()).partition(". ")[0].strip('".')


def out_of_memory(error: BaseException) -> str | None:
    """Return one sentence if the error means that GPU or host memory has run out, otherwise None."""
    torch = sys.modules.get("torch")  # Programs without a model use this module, too, and have no torch.
    if torch and isinstance(error, torch.OutOfMemoryError):
        return "the GPU is out of memory: give a smaller model, --kv-memory, --token-budget or --max-running"
    # torch raises a plain RuntimeError for host memory.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return "this machine is out of memory: give a smaller model, --kv-memory, --token-budget or --max-running"
    return None
