"""decode.cu: is it right, what does it need, and how long does it take on a GPU, beside Triton's kernel?

.venv/bin/python -m beyond.cuda_kernels            # without a GPU it runs on the CPU, which tells no times
.venv/bin/python -m beyond.cuda_kernels start      # make my/cuda_kernels, where each exercise has its fault
.venv/bin/python -m beyond.cuda_kernels check      # check the exercises
"""

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from common.attention import PagedBatch, choose_attention
from common.bench.ceilings import copy_bytes_per_second
from common.bench.timing import inputs_beyond_cache, median_seconds
from common.learn.patches import patched, read_hunks
from common.stages import ROOT
from common.terminal import run_to_end

from .decode import KERNEL, attend_on_cpu, attend_on_gpu, find_nvcc, report_of

MINE = ROOT / "my" / "cuda_kernels"
FAULTS = {KERNEL: "bank_conflict.patch", ROOT / "common/attention/triton_kernels.py": "one_buffer.patch"}
ALLOWED = 1e-5  # absolute error: numbers of about 1 are summed in another order


def case(lengths: list[int], device: str, H_kv: int = 8, groups: int = 2, D: int = 128) -> tuple:
    """Return random q, K and V in bfloat16, and requests of these lengths in pages that lie anywhere."""
    counts, page_size = [-(-length // 16) for length in lengths], 16
    tables = [pages.tolist() for pages in torch.randperm(sum(counts)).split(counts)]
    nowhere = torch.full((len(lengths),), -1, device=device)
    shapes = (len(lengths), H_kv * groups, D), *2 * [(sum(counts), page_size, H_kv, D)]
    tensors = (torch.randn(shape, dtype=torch.bfloat16, device=device) for shape in shapes)
    return *tensors, PagedBatch.pack([1] * len(lengths), lengths, tables, nowhere, page_size)


def attend_by(name: str, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch) -> Tensor:
    """Return the attention of the same requests by the course's backend of this name."""
    backend, _ = choose_attention(name, q.device, q.dtype, q.shape[2])
    return backend.attend(q, k_pages, v_pages, backend.prepare(batch))


def faults_of(kernel: Path) -> str:
    """Run the kernel on the CPU, print its error and its conflicts, and say what is wrong; "" for nothing."""
    *tensors, batch = case([1, 40, 300], "cpu", H_kv=2)
    expected, errors = attend_by("torch", *(tensor.float() for tensor in tensors), batch), []
    for backwards in (False, True):
        found, conflicts = attend_on_cpu(*tensors, batch, kernel=kernel, backwards=backwards)
        errors.append((found - expected).abs().max().item())
    print("  largest error {:.1e}; with the threads in the opposite order {:.1e}".format(*errors))
    print("  of {:,} uses of shared memory, bank conflicts cost {:,} turns, at most {} at once".format(*conflicts))
    if not max(errors) < ALLOWED:
        return "the result is wrong, or depends on the order of the threads"
    return "bank conflicts" if conflicts.lost else ""


def times(B: int) -> tuple[float, ...]:
    """Return microseconds of B requests of 1,024 tokens: by decode.cu, by Triton, and of a copy of as many bytes."""
    q, k, v, batch = case([1024] * B, "cuda")
    inputs = [(q, k.clone(), v.clone()) for _ in range(inputs_beyond_cache(2 * k.nbytes, q.device))]
    ways = (lambda *tensors: attend_on_gpu(*tensors, batch)), (lambda *tensors: attend_by("triton", *tensors, batch))
    copy = 2 * k.nbytes / copy_bytes_per_second(q.device)
    return *(1e6 * median_seconds(way, q.device, inputs) for way in ways), 1e6 * copy


def show() -> int:
    """Run decode.cu where it can run, and print what its compiler says."""
    print("decode.cu on this CPU")
    wrong = faults_of(KERNEL)
    nvcc = find_nvcc()
    for arch in (80, 90) if nvcc else ():
        print(f"decode.cu for sm_{arch}\n  {report_of(nvcc, arch)}")
    if torch.cuda.is_available():
        print("requests  decode.cu, us  Triton, us  a copy, us")
        for B in (1, 8, 64, 256):
            print("{:8}  {:13.1f}  {:10.1f}  {:10.1f}".format(B, *times(B)))
    return bool(wrong)


def start() -> int:
    """Copy both kernels into my/cuda_kernels, each with the fault of its exercise."""
    MINE.mkdir(parents=True)
    for path, fault in FAULTS.items():
        hunks = read_hunks((KERNEL.parent / fault).read_text(encoding="utf-8"))
        (MINE / path.name).write_text(patched(path.read_text(encoding="utf-8"), hunks, path.name), encoding="utf-8")
    return 0


def check() -> int:
    """Say of each exercise what is still wrong."""
    print("decode.cu")
    first = faults_of(MINE / "decode.cu")
    print("triton_kernels.py")
    command = [sys.executable, "-m", "beyond.cuda_kernels.waits", MINE / "triton_kernels.py"]
    waits = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    print(f"  {', '.join(waits)}")
    second = "" if {*waits} > {"wait_group 0"} else "the loop waits for all copies, those of the next blocks too"
    print(f"Exercise 1: {first or 'done'}.\nExercise 2: {second or 'done'}.")
    return bool(first or second)


if __name__ == "__main__":
    commands = {"start": start, "check": check}
    if unknown := [name for name in sys.argv[1:] if name not in commands]:
        sys.exit(f"Unknown command {unknown[0]!r}. Use start, check, or none.")
    run_to_end(commands.get(*sys.argv[1:], show) if sys.argv[1:] else show)
