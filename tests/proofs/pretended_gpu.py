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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


class Compiled(NamedTuple):
    """One kernel as one GPU would get it."""

    kernel: str
    registers: int  # of a thread
    stack: int  # bytes of a thread's local memory: what registers did not hold
    shared: int  # bytes of a block's shared memory
    cubin: bytes = b""  # what the GPU would run


class PretendedGPU:
    """Takes the place of Triton's driver, its utilities and its launcher. arch: 90 is compute capability 9.0."""

    numbers = itertools.count()

    def __init__(self, arch: int):
        self.arch, self.number = arch, next(self.numbers)  # nothing has been compiled for this device before
        self.compiled: list[Compiled] = []  # in the order of their first launches
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 2**30}  # what is too much for a real one is found by its figure

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return lambda *arguments: None

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[object, int, int, int, int]:
        """Called once for each variant of a kernel, before its first launch."""
        registers, stack = registers_and_stack(cubin)
        self.compiled.append(Compiled(name, registers, stack, shared, cubin))
        return object(), 0, registers, stack, 1024  # the last: threads that a block may have

    def unload_module(self, module: object) -> None:
        pass


def registers_and_stack(cubin: bytes) -> tuple[int, int]:
    """A thread's registers, and the bytes of its stack."""
    numbers = dict(re.findall(r"(REG|STACK):(\d+)", shown_by("cuobjdump", cubin, "--dump-resource-usage")))
    return int(numbers["REG"]), int(numbers["STACK"])


def instructions(cubin: bytes) -> list[str]:
    """The kernel's instructions in the GPU's own language, in the order of their addresses, without predicates."""
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][^;]*);", shown_by("nvdisasm", cubin))
    return [line.strip() for line in lines]


def shown_by(tool: str, cubin: bytes, *options: str) -> str:
    """What a tool of Triton's wheel prints about a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([TOOLS / tool, *options, file.name], capture_output=True, text=True, check=True).stdout


@contextmanager
def pretended_gpu(arch: int) -> Iterator[list[Compiled]]:
    """Compile launches for that architecture, and run none; yield the list of what has been compiled."""
    gpu, before = PretendedGPU(arch), driver._active
    driver.set_active(gpu)
    try:
        yield gpu.compiled
    finally:
        driver.set_active(before)
