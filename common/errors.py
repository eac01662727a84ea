"""Errors that mean the same, whoever raises them."""

import torch


def out_of_memory(error: BaseException) -> str | None:
    """One sentence if an error says that memory has run out, of whichever kind; otherwise None."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU is out of memory: give a smaller model, --kv-memory, --token-budget or --max-running"
    # torch has no class of its own for a CPU's memory.
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return "this machine is out of memory: give a smaller model, --kv-memory, --token-budget or --max-running"
    return None
