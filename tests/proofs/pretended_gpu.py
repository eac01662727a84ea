"""Triton compiles for a GPU that is not there.

Triton's compiler needs no GPU, only to be told for which one; its wheel brings NVIDIA's assembler. So a driver that
only pretends takes the place of Triton's own. Kernels are launched by the course's own functions, on CPU tensors, and
compiled with the types, constants and properties of pointers and numbers that these launches have. Nothing is run.

The environment variable TRITON_INTERPRET must not be set when Triton is first imported.
"""

import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
numbers = itertools.count()  # of devices: nothing has been compiled for the next one


class Compiled(NamedTuple):
    """One kernel as one GPU would get it."""

    kernel: str
    shared: int  # bytes of a block's shared memory
    cubin: bytes  # what the GPU would run


def registers_and_stack(cubin: bytes) -> tuple[int, int]:
    """Return a thread's registers, and the bytes of its local memory: what registers did not hold."""
    usage = dict(re.findall(r"(REG|STACK):(\d+)", shown_by("cuobjdump", cubin, "--dump-resource-usage")))
    return int(usage["REG"]), int(usage["STACK"])


def shown_by(tool: str, cubin: bytes, *options: str) -> str:
    """Return what a tool of Triton's wheel prints about a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([TOOLS / tool, *options, file.name], capture_output=True, text=True, check=True).stdout


@contextmanager
def pretended_gpu(arch: int) -> Iterator[list[Compiled]]:
    """Compile launches for that architecture, and run none; yield the list of what has been compiled.

    arch: 90 is compute capability 9.0. Kernels come in the order of their first launches.
    """
    compiled, number, before = [], next(numbers), driver._active

    def load_binary(name: str, cubin: bytes, shared: int, device: int) -> tuple[object, int, int, int, int]:
        """Stand in for the loader, which is called once for each variant of a kernel, before its first launch."""
        compiled.append(Compiled(name, shared, cubin))
        return object(), 0, 0, 0, 1024  # the last: threads that a block may have

    gpu = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", arch, 32),
        get_current_device=lambda: number,
        get_current_stream=lambda device: 0,
        # Much, so that a kernel which takes more than a real GPU has is found by its figure.
        get_device_properties=lambda device: {"max_shared_mem": 2**30},
        launcher_cls=lambda source, metadata: lambda *arguments: None,
        load_binary=load_binary,
        unload_module=lambda module: None,
    )
    gpu.utils = gpu
    driver.set_active(gpu)
    try:
        yield compiled
    finally:
        driver.set_active(before)
