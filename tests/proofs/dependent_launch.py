"""A kernel that is launched early reads and writes nothing before the one ahead of it has ended.

With programmatic dependent launch the order of memory accesses is the kernels' own duty: before the instruction that
waits for the kernel ahead (griddepcontrol.wait, ACQBULK in the GPU's own language) nothing may be read that this one
writes, nor written that it reads. CUDA promises that behind it all of that kernel has ended and can be seen. So what is
to be proven is in the machine code: the wait stands before every access to global memory, and no branch leads past it.
"""

import re
from collections.abc import Iterator
from unittest.mock import patch

import torch
from kernel_needs import SHARED, launch_attention, launch_elementwise
from pretended_gpu import Compiled, instructions, pretended_gpu

from common.attention.triton_backend import Tile
from common.fused import triton_launch
from common.loader import find_checkpoint
from common.loader.config import read_config

ARCHS = (90, 100, 120)
WAIT = "ACQBULK"
GLOBAL = re.compile(r"(LD|ST|LDG|STG|LDGSTS|ATOM|ATOMG|RED|REDG|UTMA\w*|UBLK\w*|UBLKCP)(\.|\s)")
BRANCH = re.compile(r"(BRA|BRX|JMP|JMX|CALL|RET|EXIT|BSYNC|WARPSYNC)(\.|\s|$)")
DEPENDENT = {"add_norm_kernel", "norm_rotate_kernel", "silu_mul_kernel", "decode_kernel", "combine_kernel"}


def launched_early(arch: int) -> list[Compiled]:
    """What a layer of a decode step of Qwen3-0.6B launches on that GPU with dependent launch."""
    config = read_config(find_checkpoint("Qwen3-0.6B", with_weights=False))
    with patch.dict(triton_launch.dependent, {torch.device("cpu"): True}), pretended_gpu(arch) as compiled:
        launch_elementwise(config, torch.bfloat16)
        launch_attention(config, torch.bfloat16, Tile())
    return [one for one in compiled if one.kernel in DEPENDENT]


def fault(code: list[str]) -> str | None:
    """Why these instructions may touch memory too early; None if they wait first."""
    if WAIT not in code:
        return "it does not wait for the kernel before it"
    for line in code[: code.index(WAIT)]:
        if GLOBAL.match(line):
            return f"{line!r} comes before it waits"
        if BRANCH.match(line):
            return f"{line!r} may lead past the place where it waits"
    return None


def prove(short: bool) -> Iterator[str]:
    """The proof; what is wrong, one sentence each."""
    archs = ARCHS[:1] if short else ARCHS
    for arch in archs:
        found = launched_early(arch)
        for one in found:
            if reason := fault(instructions(one.cubin)):
                yield f"sm_{arch} {one.kernel}: {reason}"
            if one.shared > SHARED[arch]:
                yield f"sm_{arch} {one.kernel}: {one.shared} bytes of shared memory do not fit"
        if missing := DEPENDENT - {one.kernel for one in found}:
            yield f"sm_{arch}: not launched early: {', '.join(sorted(missing))}"
    print(f"{len(DEPENDENT)} kernels wait before they touch memory, on {', '.join(f'sm_{arch}' for arch in archs)}")
