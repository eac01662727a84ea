"""Attention of a decode step by CUDA C++, decode.cu: on a GPU, and on a CPU to check its arithmetic.

On a GPU, PyTorch compiles the source when it is first launched, with a compiler library that it brings (NVRTC). On a
CPU, g++ compiles the same source beside on_cpu.cpp, which runs the threads of a block in turns.
"""

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from common.attention import PagedBatch

FOLDER = Path(__file__).parent
KERNEL = FOLDER / "decode.cu"
TILE = 32  # tokens


def decode(q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, length: int) -> Tensor:
    """Return the attention, `[GROUPS, D]` float32, of a request's queries `[GROUPS, D]` that share a K/V head.

    k_pages, v_pages: `[pages, page_size, D]` of this head. page_table: `[P]` int64.
    """
    q, (_, page_size, D) = q.float(), k_pages.shape
    maximum, total, result = torch.full((len(q), 1), -torch.inf), 0.0, 0.0
    for start in range(0, length, TILE):
        tokens = torch.arange(start, min(start + TILE, length))
        places = page_table[tokens // page_size], tokens % page_size
        scores = q @ k_pages[places].float().T * D**-0.5  # [GROUPS, n]
        new_maximum = torch.maximum(maximum, scores.amax(1, keepdim=True))
        weights, rescale = torch.exp(scores - new_maximum), torch.exp(maximum - new_maximum)
        result = result * rescale + weights @ v_pages[places].float()
        total, maximum = total * rescale + weights.sum(1, keepdim=True), new_maximum
    return result / total


class Conflicts(NamedTuple):
    """What the warps of a launch lost at the banks of shared memory."""

    accesses: int
    lost: int  # turns
    most: int  # the most turns that one access lost


def attend(q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, launch: Callable) -> Tensor:
    """Return the attention of requests in decode, as float32: q and the result are `[B, H, D]`, q and pages bfloat16.

    launch(grid, block, arguments, constants) runs the kernel compiled with these constants.
    """
    (B, H, D), (_, page_size, H_kv, _) = q.shape, k_pages.shape
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    arguments = q, k_pages, v_pages, batch.page_tables, batch.lengths, out, batch.page_tables.stride(0)
    constants = tuple(
        f"-D{name}={value}" for name, value in (("D", D), ("GROUPS", H // H_kv), ("PAGE_SIZE", page_size))
    )
    launch((H_kv, B, 1), (TILE, H // H_kv, 1), arguments, constants)
    return out


def attend_on_gpu(*tensors) -> Tensor:
    """As `attend`, on the current GPU."""
    return attend(*tensors, lambda grid, block, arguments, constants: on_gpu(constants)(grid, block, [*arguments]))


@cache
def on_gpu(constants: Sequence[str]) -> Callable:
    return torch.cuda._compile_kernel(KERNEL.read_text(encoding="utf-8"), "decode", nvcc_options=[*constants])


def attend_on_cpu(*tensors, kernel: Path = KERNEL, backwards: bool = False) -> tuple[Tensor, Conflicts]:
    """As `attend`, with the bank conflicts that a GPU would have. backwards: threads take their turns in that order.

    Raise ValueError if threads wait at a barrier that others of their block never reach.
    """
    counts = torch.zeros(3, dtype=torch.int64)

    def launch(grid: tuple, block: tuple, arguments: tuple, constants: tuple) -> None:
        *pointers, counted = (ctypes.c_void_p(each.data_ptr()) for each in (*arguments[:-1], counts))
        library, sizes = on_cpu(kernel.read_text(encoding="utf-8"), constants), (*grid[:2], block[1])
        if not library.launch(*pointers, arguments[-1], *sizes, ctypes.c_bool(backwards), counted):
            raise ValueError("some threads of a block go another way than the others, and that cannot be run here")

    return attend(*tensors, launch), Conflicts(*counts.tolist())


@cache
def on_cpu(source: str, constants: Sequence[str]) -> ctypes.CDLL:
    """Compile the source with g++; raise ValueError with its messages if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "decode.cu").write_text(source, encoding="utf-8")
        kernel = [*constants, "-include", FOLDER / "on_cpu.h", "-fsanitize=thread", "-x", "c++", "-c", "decode.cu"]
        for step in ([*kernel, "-o", "decode.o"], ["-shared", FOLDER / "on_cpu.cpp", "decode.o", "-o", "decode.so"]):
            command = ["g++", "-std=c++17", "-O1", "-fPIC", *step]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise ValueError(f"g++ cannot compile it:\n{done.stderr}")
        return ctypes.CDLL(str(Path(folder, "decode.so")))


def find_nvcc() -> str | None:
    """Return where NVIDIA's compiler is: on the path, or in the package nvidia-cuda-nvcc."""
    folders = Path(torch.__file__).parents[1].glob("nvidia/*/bin")  # of the package
    return shutil.which("nvcc", path=os.pathsep.join([os.environ["PATH"], *map(str, folders)]))


def report_of(nvcc: str, arch: int) -> str:
    """Return what the compiler says of the kernel's spills, registers and shared memory. arch: 90 is an H100."""
    command = [nvcc, f"-arch=sm_{arch}", "-cubin", "-Xptxas", "-v", "-o", os.devnull, KERNEL]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return ", ".join(re.findall(r"\d+ registers|\d+ bytes (?:spill stores|smem)", said))
