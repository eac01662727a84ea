"""Products of rows in 8 bits with weights of 8 and 4 bits (quantized.py): whole numbers times whole numbers.

One instruction, vpdpbusd of AVX512's VNNI, adds four products to each of 16 sums: of four inputs of 16 outputs, which
lie side by side in a weight's blocks, with the same four numbers of a row. The same weights widened to float32
(blocks.py) take a dozen instructions. llama.cpp multiplies so, too.

Every 16 numbers of a row have a scale: with one for 32, as in llama.cpp, SmolLM2 loses twice as much by it. The weights
are the unsigned factor: codes of 8 bits get 128 more on the way, so sums begin at -128 times the sum of the row's
codes. Only bfloat16 is computed so: in float32 an answer is the same in every batch, however its steps are computed.
"""

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from .blocks import (
    AHEAD,
    BYTE,
    BYTES_OF_GROUP,
    FLOAT,
    FLOATS,
    FORM,
    HEADER,
    INT,
    INTS,
    PARTS,
    STEP,
    UNIT,
    add,
    behind_sums,
    clear,
    every,
    everywhere,
    halves,
    in_parts,
    load,
    offset,
    spread,
    store,
    zeros,
)
from .numba_basics import fetch

HAS_CODES = bool(llvmlite.binding.get_host_cpu_features().get("avx512vnni"))
HALF = 16  # numbers of a row that share a scale
# A record is a group of a row in 8 bits. At byte
#      0    the codes of its 32 numbers, int8
#     32    the scale of each half, float32
#     40    where the sum of products of each half begins, int32: -128 times the sum of its codes
#     48    the sum of the numbers that all codes stand for, float32, with which a minimum is multiplied
SCALES, FIRST, SUM, RECORD = 32, 40, 48, 52  # RECORD: where the next record begins
SMALL = ir.VectorType(ir.IntType(8), HALF)


def on_vectors(builder, name: str, kind, *values):
    """Return what this function of LLVM makes of vectors."""
    function = ir.FunctionType(kind, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, f"llvm.{name}"), values)


@intrinsic
def finish_codes(typing_context, numbers, record):
    """Round 32 numbers to 8 bits, and write them to a record. Arguments are addresses."""

    def generate(_, builder, __, arguments):
        numbers, record = arguments
        both = FLOAT(0)
        for half in range(2):
            vector = load(builder, offset(builder, numbers, 4 * HALF * half), FLOATS)
            sizes = builder.and_(builder.bitcast(vector, INTS), every(0x7FFFFFFF))  # the order stays; NaN is largest
            largest = builder.bitcast(on_vectors(builder, "vector.reduce.umax.v16i32", INT, sizes), FLOAT)
            scale = builder.fmul(largest, FLOAT(1 / 127))
            is_zero = builder.fcmp_ordered("<", largest, FLOAT(1e-30))
            factor = builder.select(is_zero, FLOAT(0), builder.fdiv(FLOAT(127), largest))
            rounded = on_vectors(builder, "rint.v16f32", FLOATS, builder.fmul(vector, spread(builder, factor)))
            codes = builder.fptosi(rounded, INTS)  # any code for NaN: the scale is NaN, too
            store(builder, builder.trunc(codes, SMALL), offset(builder, record, HALF * half))
            total = on_vectors(builder, "vector.reduce.add.v16i32", INT, codes)
            store(builder, scale, offset(builder, record, SCALES + 4 * half))
            store(builder, builder.mul(total, INT(-128)), offset(builder, record, FIRST + 4 * half))
            both = builder.fadd(both, builder.fmul(scale, builder.sitofp(total, FLOAT)))
        store(builder, both, offset(builder, record, SUM))

    return types.void(types.int64, types.int64), generate


def multiply(form: str, rows: int):
    """Return the kernel that multiplies `rows` rows with one unit of a weight of this form."""

    @intrinsic
    def kernel(typing_context, weight, line, groups, steps, x, bytes_of_x, behind, out, bytes_of_out):
        """out[rows, 32] = x[rows, 32 * groups] times the weight. A row's records lie `behind` bytes after its start.

        line, steps: not used, the form says what they are.
        """

        def generate(_, builder, __, arguments):
            weight, _, groups, _, x, bytes_of_x, behind, out, bytes_of_out = arguments
            begins = [builder.add(builder.add(x, behind), builder.mul(bytes_of_x, BYTE(row))) for row in range(rows)]
            totals, both = zeros(builder, rows), zeros(builder, rows)
            with cgutils.for_range(builder, groups) as group:
                start = builder.add(weight, builder.mul(group.index, BYTE(BYTES_OF_GROUP[form])))
                records = [builder.add(begin, builder.mul(group.index, BYTE(RECORD))) for begin in begins]
                clear(builder, both)
                for half in range(2):
                    sums = products_of_half(builder, form, half, start, records)
                    for record, row, scaled in zip(records, sums, both, strict=True):
                        scale = everywhere(builder, offset(builder, record, SCALES + 4 * half))
                        for total, addend in zip(scaled, row, strict=True):
                            add(builder, total, builder.sitofp(addend, FLOATS), scale)
                for i, part in enumerate(PARTS):
                    numbers = offset(builder, start, part // 2)
                    scale = halves(builder, numbers)
                    for total, scaled in zip(totals, both, strict=True):
                        add(builder, total[i], scale, builder.load(scaled[i]))
                    if form == "4 bits":
                        minimum = halves(builder, offset(builder, numbers, 2 * UNIT))
                        for total, record in zip(totals, records, strict=True):
                            add(builder, total[i], minimum, everywhere(builder, offset(builder, record, SUM)))
            for row, sums in enumerate(totals):
                at = builder.add(out, builder.mul(bytes_of_out, BYTE(row)))
                for part, total in zip(PARTS, sums, strict=True):
                    store(builder, builder.load(total), offset(builder, at, part))

        return types.void(*[types.int64] * 9), generate

    return kernel


def products_of_half(builder, form: str, half: int, start, records: list) -> list:
    """Return each row's sums of products with a group's first or second 16 inputs, vectors of integers."""
    turns, steps = STEP[form] // 4, HALF // STEP[form]
    sums = [[first_sum(builder, form, record, half)] * len(PARTS) for record in records]
    for step in range(steps * half, steps * (half + 1)):
        at = offset(builder, start, HEADER[form] + 4 * UNIT * step)
        words = []
        for part in PARTS:
            fetch(builder, offset(builder, at, AHEAD + part), 2 if len(records) <= 2 else 3)
            words.append(load(builder, offset(builder, at, part), INTS))
        for turn in range(turns):
            codes = [unsigned(builder, word, form, turn) for word in words]
            for row, record in zip(sums, records, strict=True):
                numbers = spread(builder, load(builder, offset(builder, record, 4 * (turns * step + turn)), INT))
                for i, code in enumerate(codes):
                    row[i] = on_vectors(builder, "x86.avx512.vpdpbusd.512", INTS, row[i], code, numbers)
    return sums


def first_sum(builder, form: str, record, half: int):
    """Return where sums of products begin, a vector: what makes up for codes of 8 bits that are 128 too large."""
    if form == "4 bits":
        return every(0)
    return spread(builder, load(builder, offset(builder, record, FIRST + 4 * half), INT))


def unsigned(builder, words, form: str, turn: int):
    """Return the codes of four inputs as unsigned bytes."""
    if form == "8 bits":
        return builder.xor(words, every(0x80808080))
    return builder.and_(builder.lshr(words, every(4 * turn)), every(0x0F0F0F0F))


def multiply_codes(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number):
    """As `multiply_rows` (blocks.py), with rows in 8 bits."""


@overload(multiply_codes, jit_options={"error_model": "numpy"})
def _multiply_codes(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number):
    multiply_some = in_parts(multiply, FORM[number], 8)

    def multiply_codes(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number):
        groups = (ins + 31) // 32
        behind = behind_sums(groups) + 64 * groups
        for unit in range(first, last):
            weight, to = place[0] + unit * place[1], out + 128 * unit
            multiply_some(weight, 0, groups, 0, x, bytes_of_x, behind, rows, to, bytes_of_out)

    return multiply_codes
