"""Errors that mean the same, whoever raises them."""

import torch

SHORT = 100  # characters


def shortened(value: object) -> str:
    """A value that came from a client, as it may stand in a message: it may be a megabyte long."""
    text = str(value) if isinstance(value, Exception) else repr(value[:SHORT] if isinstance(value, str) else value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def out_of_memory(error: BaseException) -> str | None:
    """One sentence if an error says that memory has run out, of whichever kind; otherwise None."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU is out of memory: give a smaller model, --kv-memory, --token-budget or --max-running"
    # torch has no class of its own for a CPU's memory.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return "this machine is out of memory: give a smaller model, --kv-memory, --token-budget or --max-running"
    return None
