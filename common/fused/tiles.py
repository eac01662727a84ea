"""Products of some dozens of rows in the tiles of AMX: weights in blocks (blocks.py), as fast as memory delivers.

Intel's processors have AMX since Sapphire Rapids: eight registers of 16 lines, 64 bytes each. One instruction
multiplies 16 rows of 32 inputs in bfloat16 with 16 outputs and adds to 16 x 16 sums in float32, the work of 256 fused
multiplications of vectors. Four tiles hold the sums of two halves of the rows and two parts of a unit's outputs, two
the rows, two the weights. A weight in bfloat16 lies in memory as its tiles are loaded; groups of 8 and 4 bits are
widened on the way, in the nearest cache.

A row's sums in tiles have the same order whatever other rows there are. Numbers below the smallest normal one count as
zero.
"""

from functools import cache

import llvmlite.binding
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from .blocks import (
    BYTE,
    BYTES_OF_GROUP,
    FORM,
    HEADER,
    INT,
    INTS,
    PARTS,
    STEP,
    behind_sums,
    multiply_rows,
    offset,
    widen_group,
)
from .codes import HAS_CODES, multiply_codes
from .numba_basics import fetch

LINES, INPUTS = 16, 32  # of a tile
AHEAD = 4096  # bytes, see blocks.py: measured on an Intel Xeon of the fifth generation
MIN_ROWS = 8  # rows: for fewer, `multiply_rows` is done before the weights lie in tiles
MIN_ROWS_QUANTIZED = 25  # rows: for fewer and 8 or 4 bits, `multiply_codes` is faster than widening for tiles
SUMS, ROWS, WEIGHTS = 0, 4, 6  # the first tile that holds them


@cache
def has_tiles() -> bool:
    """Return whether this process may use tiles: a system allows them to processes that ask."""
    return bool(llvmlite.binding.get_host_cpu_features().get("amx-bf16")) and torch.cpu._init_amx()


def instruct(builder, name: str, *operands) -> None:
    """Write an instruction of AMX. Operands: tiles by their numbers, pointers, and bytes from one line to the next."""
    values = [ir.IntType(8)(each) if isinstance(each, int) else each for each in operands]
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


@intrinsic
def configure(typing_context, first, second):
    """Give the tiles of the two halves of the rows `first` and `second` lines. What tiles held is lost."""

    def generate(_, builder, __, arguments):
        first, second = (builder.trunc(count, INT) for count in arguments)
        sums = builder.add(builder.mul(first, INT(0x0101)), builder.mul(second, INT(0x01010000)))
        rows = builder.add(first, builder.mul(second, INT(0x0100)))
        weights = INT(LINES << 24 | LINES << 16)
        # 64 bytes: byte 0 is 1, those from 16 on say each tile's bytes per line, those from 48 on its lines.
        words = ir.Constant(INTS, [1, 0, 0, 0, *[64 << 16 | 64] * 4, *[0] * 8])
        words = builder.insert_element(words, sums, INT(12))
        words = builder.insert_element(words, builder.add(rows, weights), INT(13))
        place = cgutils.alloca_once_value(builder, words)
        instruct(builder, "ldtilecfg", builder.bitcast(place, cgutils.voidptr_t))

    return types.void(types.int64, types.int64), generate


@intrinsic
def release(typing_context):
    """Empty the tiles: a system saves those in use whenever the thread pauses."""
    return types.void(), lambda _, builder, __, ___: instruct(builder, "tilerelease")


def multiply(form: str, halves: int):
    """Return the kernel that multiplies up to 16 rows, or 32 in two halves, with a unit of a weight of this form."""

    @intrinsic
    def kernel(typing_context, weight, line, groups, x, bytes_of_x, out, bytes_of_out):
        """out[rows, 32] = x[rows, 32 * groups], bfloat16, times the weight."""

        def generate(_, builder, __, arguments):
            weight, line, groups, x, bytes_of_x, out, bytes_of_out = arguments
            bytes_of_group = builder.mul(line, BYTE(LINES))
            buffer = builder.ptrtoint(cgutils.alloca_once(builder, INTS, 2 * LINES), BYTE)
            every = [(half, part) for half in range(halves) for part in range(2)]

            def move(name, tile, start, half, nbytes, line):
                """Load or store a tile that is `nbytes` bytes and `half` times 16 lines behind the start."""
                start = builder.add(start, builder.mul(line, BYTE(LINES * half)))
                instruct(builder, name, tile, builder.inttoptr(offset(builder, start, nbytes), cgutils.voidptr_t), line)

            for half, part in every:
                instruct(builder, "tilezero", SUMS + 2 * half + part)
            with cgutils.for_range(builder, groups) as group:
                if HEADER[form]:
                    start = builder.add(weight, builder.mul(group.index, BYTE(BYTES_OF_GROUP[form])))
                    widen_group(builder, form, "bfloat16", start, BYTE(INPUTS // STEP[form]), buffer, BYTE(128))
                    start, line = buffer, BYTE(128)
                else:
                    start = builder.add(weight, builder.mul(group.index, bytes_of_group))
                    for step in range(LINES):
                        at = builder.add(start, builder.mul(line, BYTE(step)))
                        for part in PARTS:
                            fetch(builder, offset(builder, at, AHEAD + part))
                inputs = builder.add(x, builder.mul(group.index, BYTE(2 * INPUTS)))
                for half in range(halves):
                    move("tileloadd64", ROWS + half, inputs, half, 0, bytes_of_x)
                for part in range(2):
                    move("tileloadd64", WEIGHTS + part, start, 0, PARTS[part], line)
                for half, part in every:
                    instruct(builder, "tdpbf16ps", SUMS + 2 * half + part, ROWS + half, WEIGHTS + part)
            for half, part in every:
                move("tilestored64", SUMS + 2 * half + part, out, half, PARTS[part], bytes_of_out)

        return types.void(*[types.int64] * 7), generate

    return kernel


def multiply_tiles(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number):
    """As `multiply_rows`; x has its numbers in bfloat16, too."""


@overload(multiply_tiles, jit_options={"error_model": "numpy"})
def _multiply_tiles(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number):
    one, two = (multiply(FORM[number], halves) for halves in (1, 2))
    few, least = (
        (multiply_codes, MIN_ROWS_QUANTIZED) if HAS_CODES and HEADER[FORM[number]] else (multiply_rows, MIN_ROWS)
    )

    def multiply_tiles(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number):
        if rows < least:
            return few(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number)
        line, groups = place[2], ins // 32
        for unit in range(first, last):
            start = unit * 128
            weight = place[0] + start // line * place[1] + start % line
            at, to, left = x + behind_sums(groups), out + start, rows
            while left > 0:
                configure(min(left, 16), max(1, min(left - 16, 16)))
                if left > 16:
                    two(weight, line, groups, at, bytes_of_x, to, bytes_of_out)
                else:
                    one(weight, line, groups, at, bytes_of_x, to, bytes_of_out)
                at, to, left = at + 32 * bytes_of_x, to + 32 * bytes_of_out, left - 32
            release()

    return multiply_tiles
