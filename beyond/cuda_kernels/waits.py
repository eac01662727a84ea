"""Print how the loop of Triton's decode kernel waits for its copies, as compiled for an H100; no GPU is needed.

.venv/bin/python -m beyond.cuda_kernels.waits [FILE]        # common/attention/triton_kernels.py, or a copy of it
"""

import os
import re
import sys
from runpy import run_path

os.environ.pop("TRITON_INTERPRET", None)  # Triton reads it on import.

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from common.attention.triton_backend import MAX_PIECES, SPLIT, Tile
from common.stages import ROOT

TYPES = "*bf16 *bf16 *bf16 *i32 *i32 *fp32 *fp32 *i32 *bf16 i32 i32 i32 fp32".split()  # decode_kernel's arguments
CONSTANTS = {"H_KV": 8, "GROUPS": 2, "D": 128, "PAGE_SIZE": 16, "SPLIT": SPLIT, "MAX_PIECES": MAX_PIECES}
CONSTANTS |= {"BLOCK_G": 16, "BLOCK_N": Tile().block_n, "BLOCK_D": 128, "DOT": tl.bfloat16, "WINDOW": 0}


def waits(path: str) -> list[str]:
    """Return each wait for copies to shared memory in the order of the code: `wait_group 2` leaves two in flight."""
    kernel = run_path(path)["decode_kernel"]
    types = dict(zip(kernel.arg_names, TYPES, strict=False)) | dict.fromkeys(CONSTANTS, "constexpr")
    aligned = [i for i, name in enumerate(types) if types[name].startswith("*") or name == "q_stride"]
    source = ASTSource(kernel, types, CONSTANTS, {(i,): [["tt.divisibility", 16]] for i in aligned})
    options = {"num_warps": Tile().warps, "num_stages": Tile().stages}
    assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    return [f"wait_group {left}" for left in re.findall(r"cp\.async\.wait_group\s+(\d+)", assembly)]


if __name__ == "__main__":
    print(*waits(*sys.argv[1:] or [str(ROOT / "common/attention/triton_kernels.py")]), sep="\n")
