"""Where Triton's kernels can be launched, and how: the table of the tiles measured as best for each GPU."""

import json
import os
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

import torch

from ..errors import shortened

# {GPU: {"bfloat16 128": [64, 4, 3]}}: tiles by type and head dimension. GPU.md says when a line is worth adding. A tile
# changes in which order sums are added: so the table is part of what is measured.
TUNED = Path(__file__).parents[1] / "attention" / "tuned.json"


def tuned(device: torch.device) -> dict[str, Any]:
    """Return what the table has for this GPU."""
    if device.type != "cuda" or not TUNED.exists():
        return {}
    return json.loads(TUNED.read_text()).get(torch.cuda.get_device_name(device), {})


def interpreted() -> bool:
    """Return whether Triton runs its kernels in Python, on CPU tensors: slow, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def why_not_triton(device: torch.device) -> str | None:
    """Return why kernels cannot be launched on this device's tensors, None if they can."""
    if not util.find_spec("triton"):
        return "the package triton is not installed"
    if device.type != "cuda":
        return None if interpreted() else "it needs a CUDA device (or TRITON_INTERPRET=1, to test it)"
    return why_no_driver()


@cache
def why_no_driver() -> str | None:
    """Return why Triton cannot drive the GPU, None if it can: it compiles a part of itself, in C, on first use."""
    from triton.runtime import driver

    try:
        driver.active.get_current_target()
    except Exception as error:  # The type differs without a compiler and without Python's headers.
        why = f"{type(error).__name__}: {shortened(error)}"
        return f"it needs gcc and Python's headers, as of `apt install gcc python3-dev` ({why})"
    return None
