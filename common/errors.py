"""What is told to users in a sentence, and words of error messages that every module shares."""

import sys

SHORT = 100  # characters


class InvalidInput(ValueError):
    """What a user or a client asks for is refused; the message says what is wrong and what to do, in one sentence.

    Only this is told without a traceback, and answered with 400. Any other ValueError is a fault in the code.
    """


def counted(number: int, noun: str) -> str:
    """Return "1 slot", "2 slots": for nouns with a regular plural."""
    return f"{number} {noun}{'s' * (number != 1)}"


def shortened(value: object) -> str:
    """Return a client's value for an error message, cut to SHORT characters: it may be a megabyte long."""
    text = str(value) if isinstance(value, Exception) else repr(value[:SHORT] if isinstance(value, str) else value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def out_of_memory(error: BaseException) -> str | None:
    """Return one sentence if the error means that GPU or host memory has run out, otherwise None."""
    torch = sys.modules.get("torch")  # programs without a model take their words from here, too
    if torch and isinstance(error, torch.OutOfMemoryError):
        return "the GPU is out of memory: give a smaller model, --kv-memory, --token-budget or --max-running"
    # torch raises a plain RuntimeError for host memory.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return "this machine is out of memory: give a smaller model, --kv-memory, --token-budget or --max-running"
    return None
