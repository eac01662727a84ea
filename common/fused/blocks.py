"""Products that read weights in blocks (packed.py) as fast as memory delivers.

A unit of work is 32 outputs of some rows. It walks over the inputs and holds its sums in registers: nothing is added
across a register, and a row's sums have the same order whatever other rows there are. Written in LLVM's own terms,
since numba does not keep an array in registers.
"""

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from .numba_basics import fetch

UNIT, LANES = 32, 16  # outputs; numbers of a vector, which LLVM splits where registers are smaller
# Bytes from a weight's use to the one that is fetched meanwhile. Without that, eight rows take 1.5 times as long on an
# Intel Xeon of the fifth generation, and one row in bfloat16, too.
AHEAD = 4096
MOST_ROWS = 8 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 2  # whose sums fit into the registers
BYTE, INT, FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
INTS, FLOATS = ir.VectorType(INT, LANES), ir.VectorType(FLOAT, LANES)


def multiply(step: int, rows: int):
    """Return what multiplies `rows` rows with one unit of a weight; step: inputs of four bytes of it, 1 or 2."""

    @intrinsic
    def kernel(typing_context, weight, bytes_of_step, steps, x, bytes_of_x, out, bytes_of_out):
        """out[rows, 32] = x[rows, step * steps] times the weight."""

        def generate(_, builder, __, arguments):
            weight, bytes_of_step, steps, x, bytes_of_x, out, bytes_of_out = arguments
            groups = range(UNIT // LANES)
            sums = [[cgutils.alloca_once(builder, FLOATS) for _ in groups] for _ in range(rows)]
            for total in (total for line in sums for total in line):
                builder.store(ir.Constant(FLOATS, [0.0] * LANES), total)
            with cgutils.for_range(builder, steps) as loop:
                at = builder.add(weight, builder.mul(loop.index, bytes_of_step))
                weights = []
                for group in groups:
                    place = offset(builder, at, 4 * LANES * group)
                    fetch(builder, offset(builder, place, AHEAD))
                    weights.append(floats(builder, place, step))
                for row in range(rows):
                    line = builder.add(x, builder.mul(bytes_of_x, BYTE(row)))
                    line = builder.add(line, builder.mul(loop.index, BYTE(4 * step)))
                    for number in range(step):
                        factor = everywhere(builder, load(builder, offset(builder, line, 4 * number), FLOAT))
                        for group, total in enumerate(sums[row]):
                            term = builder.fmul(weights[group][number], factor, flags=["contract"])
                            builder.store(builder.fadd(builder.load(total), term, flags=["contract"]), total)
            for row, line in enumerate(sums):
                for group, total in enumerate(line):
                    at = builder.add(out, builder.mul(bytes_of_out, BYTE(row)))
                    at = builder.inttoptr(offset(builder, at, 4 * LANES * group), FLOATS.as_pointer())
                    builder.store(builder.load(total), at, align=4)

        return types.void(*[types.int64] * 7), generate

    return kernel


def offset(builder, address, nbytes: int):
    return builder.add(address, BYTE(nbytes))


def load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def everywhere(builder, number):
    """Return a vector of this number."""
    none = ir.Constant(FLOATS, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(none, number, INT(0)), none, ir.Constant(INTS, [0] * LANES))


def floats(builder, address, step: int) -> list:
    """Return the weights of each of a step's inputs, a vector each."""
    if step == 1:
        return [load(builder, address, FLOATS)]
    pairs = load(builder, address, INTS)  # of bfloat16, the first input's in the lower half
    first = builder.shl(pairs, ir.Constant(INTS, [16] * LANES))
    second = builder.and_(pairs, ir.Constant(INTS, [0xFFFF0000] * LANES))
    return [builder.bitcast(bits, FLOATS) for bits in (first, second)]


def product(x, ins, place, unit, sums, like):
    """sums[rows, 32 * unit :] = x[rows, ins] times 32 outputs of the weight: float32, but weights are as in `like`."""


@overload(product, jit_options={"error_model": "numpy"})
def _product(x, ins, place, unit, sums, like):
    step, most = 1 if isinstance(like.dtype, types.Float) else 2, MOST_ROWS
    one, two, four, eight = (multiply(step, rows) for rows in (1, 2, 4, 8))

    def units(x, ins, place, unit, sums, like):
        start, line = unit * 128, place[2]
        weight = place[0] + start // line * place[1] + start % line
        at, bytes_of_x, out, bytes_of_out = x.ctypes.data, x.strides[0], sums.ctypes.data + start, sums.strides[0]
        steps, left = (ins + step - 1) // step, len(x)
        while left > 0:
            rows = 8 if left >= 8 and most >= 8 else 4 if left >= 4 and most >= 4 else 2 if left >= 2 else 1
            if rows == 8:
                eight(weight, line, steps, at, bytes_of_x, out, bytes_of_out)
            elif rows == 4:
                four(weight, line, steps, at, bytes_of_x, out, bytes_of_out)
            elif rows == 2:
                two(weight, line, steps, at, bytes_of_x, out, bytes_of_out)
            else:
                one(weight, line, steps, at, bytes_of_x, out, bytes_of_out)
            at, out, left = at + rows * bytes_of_x, out + rows * bytes_of_out, left - rows

    return units
