"""Products that read weights in blocks (packed.py) as fast as memory delivers.

A unit is 32 outputs. A kernel takes one for some rows, or both of a block of 64, walks over the inputs and holds the
sums in registers: nothing is added across a register, and a row's sums have the same order whatever other rows there
are. Written in LLVM's own terms, since numba does not keep an array in registers.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import llvmlite.binding
import numpy
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic, overload

from .kept_kernels import kept
from .numba_basics import array, f4, fetch

UNIT, LANES = 32, 16  # outputs; numbers of a vector, which LLVM splits where registers are smaller
# Bytes from a weight in use to the one that is fetched meanwhile. Without that, eight rows take 1.5 times as long on an
# Intel Xeon of the fifth generation, and one row in bfloat16, too (measured with 4,096 bytes, into the first cache). An
# AMD EPYC of the fourth has more reads on the way to its second cache than to its first. So float32 and bfloat16 go to
# the second, and codes of one or two rows (codes.py): one row takes 0.9 of the time. Codes that are used for longer, or
# widened, go to the first. At a distance of 4,096, one row of 4 bits takes 1.3 times as long there.
AHEAD = 2048
FEATURES = llvmlite.binding.get_host_cpu_features()
MAX_ROWS = 8 if FEATURES.get("avx512f") else 2  # rows: their sums fit into the registers
# One instruction multiplies two inputs in bfloat16 with their weights, and adds both products to a sum in float32.
HAS_PAIRS = bool(FEATURES.get("avx512bf16"))
# Inputs of a step, which are four bytes; in 8 and 4 bits (quantized.py) the bytes of a group's scales, and of a group.
STEP = {"float32": 1, "bfloat16": 2, "8 bits": 4, "4 bits": 8}
HEADER = {"float32": 0, "bfloat16": 0, "8 bits": 64, "4 bits": 128}
BYTES_OF_GROUP = {"float32": 0, "bfloat16": 0, "8 bits": 64 + 1024, "4 bits": 128 + 512}
BYTE, INT, FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
INTS, FLOATS = ir.VectorType(INT, LANES), ir.VectorType(FLOAT, LANES)
PARTS = range(0, 4 * UNIT, 4 * LANES)  # where the vectors of a unit lie in a step, in bytes
NUMBER = {"float32": f4(0), "bfloat16": numpy.uint16(0), "8 bits": numpy.int8(0), "4 bits": numpy.uint8(0)}
FORM = {types.float32: "float32", types.uint16: "bfloat16", types.int8: "8 bits", types.uint8: "4 bits"}

_functions: list[CFunc] = []  # their code lives as long as they do


def multiply(form: str, rows: int, units: int = 1):
    """Return the kernel that multiplies `rows` rows with `units` neighbouring units of a weight of this form."""
    pairs, parts = form == "bfloat16" and HAS_PAIRS, range(0, units * 4 * UNIT, 4 * LANES)
    step, header, each = 1 if pairs else STEP[form], HEADER[form], BYTES_OF_GROUP[form]

    @intrinsic
    def kernel(typing_context, weight, line, groups, steps, x, bytes_of_x, sums_of_x, out, bytes_of_out):
        """out[rows, 32 * units] = x[rows] times the weight, of which a step takes four bytes of each output.

        x: in float32, with pairs in bfloat16. Its groups' sums lie in its rows, sums_of_x bytes after their start.
        """

        def generate(_, builder, __, arguments):
            weight, line, groups, steps, x, bytes_of_x, sums_of_x, out, bytes_of_out = arguments
            starts = [builder.add(x, builder.mul(bytes_of_x, BYTE(row))) for row in range(rows)]
            totals, sums = zeros(builder, rows, units), zeros(builder, rows, units)
            with cgutils.for_range(builder, groups) as group:
                start = builder.add(weight, builder.mul(group.index, BYTE(each)))
                clear(builder, sums)
                with cgutils.for_range(builder, steps) as loop:
                    at = offset(builder, builder.add(start, builder.mul(loop.index, line)), header)
                    weights = [floats(builder, offset(builder, at, part), form, pairs) for part in parts]
                    count = builder.add(builder.mul(group.index, steps), loop.index)
                    first = builder.mul(count, BYTE(4 * step))
                    for begin, row in zip(starts, sums, strict=True):
                        for i in range(step):
                            factor = everywhere(builder, offset(builder, builder.add(begin, first), 4 * i))
                            for vectors, total in zip(weights, row, strict=True):
                                (add_pairs if pairs else add)(builder, total, vectors[i], factor)
                for begin, row, addends in zip(starts, totals, sums, strict=True):
                    place = builder.add(builder.add(begin, sums_of_x), builder.mul(group.index, BYTE(4)))
                    for part, total, addend in zip(parts, row, addends, strict=True):
                        numbers = offset(builder, start, part // 2)
                        if header:
                            add(builder, total, builder.load(addend), halves(builder, numbers))
                        else:  # there is one group
                            builder.store(builder.load(addend), total)
                        if form == "4 bits":
                            minimum = halves(builder, offset(builder, numbers, 2 * UNIT))
                            add(builder, total, minimum, everywhere(builder, place))
            for row, line in enumerate(totals):
                at = builder.add(out, builder.mul(bytes_of_out, BYTE(row)))
                for part, total in zip(parts, line, strict=True):
                    store(builder, builder.load(total), offset(builder, at, part))

        return types.void(*[types.int64] * 9), generate

    return kernel


def zeros(builder, rows: int, units: int = 1) -> list:
    """Return variables for the sums of rows with `units` units, as vectors."""
    sums = [[cgutils.alloca_once(builder, FLOATS) for _ in range(units * len(PARTS))] for _ in range(rows)]
    clear(builder, sums)
    return sums


def clear(builder, sums: list) -> None:
    for row in sums:
        for total in row:
            builder.store(ir.Constant(FLOATS, [0.0] * LANES), total)


def add(builder, total, factor, other) -> None:
    """total += factor * other"""
    term = builder.fmul(factor, other, flags=["contract"])
    builder.store(builder.fadd(builder.load(total), term, flags=["contract"]), total)


def add_pairs(builder, total, weights, factors) -> None:
    """total += the sum of two products: each weight and each factor is two numbers in bfloat16"""
    kind = ir.FunctionType(FLOATS, [FLOATS, INTS, INTS])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    pairs = [builder.bitcast(each, INTS) for each in (weights, factors)]
    builder.store(builder.call(function, [builder.load(total), *pairs]), total)


def unpack_unit(form: str, number: str):
    """Return what writes a unit of a weight of 8 or 4 bits as one of float32 or bfloat16."""

    @intrinsic
    def kernel(typing_context, group, steps, out, line):
        """Write `steps` steps of the unit's group at this address, to lines of the other."""

        def generate(_, builder, __, arguments):
            widen_group(builder, form, number, *arguments)

        return types.void(*[types.int64] * 4), generate

    return kernel


def widen_group(builder, form: str, number: str, group, steps, out, line) -> None:
    """Write what `unpack_unit` does."""
    step, header, each = STEP[form], HEADER[form], STEP[number]
    for part in PARTS:
        scale = halves(builder, offset(builder, group, part // 2))
        minimum = halves(builder, offset(builder, group, 2 * UNIT + part // 2)) if form == "4 bits" else None
        with cgutils.for_range(builder, steps) as loop:
            at = offset(builder, builder.add(group, builder.mul(loop.index, BYTE(4 * UNIT))), header)
            values = [builder.fmul(value, scale) for value in floats(builder, offset(builder, at, part), form)]
            if minimum:
                values = [builder.fadd(value, minimum) for value in values]
            first = builder.mul(loop.index, BYTE(step // each))
            for i in range(step // each):
                at = builder.add(out, builder.mul(builder.add(first, BYTE(i)), line))
                value = values[i] if each == 1 else pair(builder, *values[2 * i : 2 * i + 2])
                store(builder, value, offset(builder, at, part))


def offset(builder, address, nbytes: int):
    return builder.add(address, BYTE(nbytes))


def load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def everywhere(builder, address):
    """Return a vector of the number at this address."""
    return spread(builder, load(builder, address, FLOAT))


def spread(builder, number):
    """Return a vector of this number."""
    none = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(none, number, INT(0)), none, every(0))


def store(builder, value, address) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def every(number: int):
    return ir.Constant(INTS, [number] * LANES)


def halves(builder, address):
    """Return a vector of float16 numbers as float32."""
    return builder.fpext(load(builder, address, ir.VectorType(ir.HalfType(), LANES)), FLOATS)


def rounded(builder, numbers):
    """Return a vector whose upper halves are the nearest bfloat16, ties to even."""
    bits = builder.bitcast(numbers, INTS)
    even = builder.and_(builder.lshr(bits, every(16)), every(1))
    return builder.add(bits, builder.add(even, every(0x7FFF)))


def pair(builder, first, second):
    """Return vectors as bfloat16, side by side."""
    first, second = (rounded(builder, number) for number in (first, second))
    return builder.or_(builder.lshr(first, every(16)), builder.and_(second, every(0xFFFF0000)))


@intrinsic
def finish(typing_context, numbers, total, halves):
    """Write the sum of 32 numbers, and the numbers in bfloat16. Arguments are addresses."""

    def generate(_, builder, __, arguments):
        numbers, total, halves = arguments
        vectors = [load(builder, offset(builder, numbers, part), FLOATS) for part in PARTS]
        kind = ir.FunctionType(FLOAT, [FLOAT, FLOATS])
        add_up = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        both = builder.fadd(*vectors)
        store(builder, builder.call(add_up, [FLOAT(0), both], fastmath=["reassoc"]), total)
        for part, vector in zip(PARTS, vectors, strict=True):
            upper = builder.lshr(rounded(builder, vector), every(16))
            words = builder.trunc(upper, ir.VectorType(ir.IntType(16), LANES))
            store(builder, words, offset(builder, halves, part // 2))

    return types.void(*[types.int64] * 3), generate


def floats(builder, address, form: str, pairs: bool = False) -> list:
    """Return the weights of each of a step's inputs, a vector each: four bytes of every output. pairs: as they lie."""
    fetch(builder, offset(builder, address, AHEAD), 3 if HEADER[form] else 2)
    if form == "float32" or pairs:
        return [load(builder, address, FLOATS)]
    words, step = load(builder, address, INTS), STEP[form]  # the first input is in the lowest bits
    if form == "bfloat16":
        return [
            builder.bitcast(bits, FLOATS)
            for bits in (builder.shl(words, every(16)), builder.and_(words, every(0xFFFF0000)))
        ]
    if form == "8 bits":
        codes = [builder.ashr(builder.shl(words, every(24 - 8 * i)), every(24)) for i in range(step)]
    else:
        codes = [builder.and_(builder.lshr(words, every(4 * i)), every(15)) for i in (0, 2, 4, 6, 1, 3, 5, 7)]
    return [builder.sitofp(code, FLOATS) for code in codes]


@njit
def behind_sums(groups):
    """Return the bytes of the numbers of so many groups in float32 and of their sums, up to a line of the caches."""
    return 128 * groups + (groups + 15) // 16 * 64


@njit(error_model="numpy")
def product(x, ins, place, units, sums):
    """sums[rows, 32 * first : 32 * last] = x[rows, ins] times these units of a weight. x: as `factors` has it
    (numba_kernels.py). place: with the address of a `multiplier`. units: the first, and the first behind them."""
    at = sums.ctypes.data, sums.strides[0]
    call(place.ctypes.data, x.ctypes.data, x.strides[0], len(x), ins, units[0], units[1], at[0], at[1])


@intrinsic
def call(typing_context, place_at, x_at, bytes_of_x, rows, ins, first, last, out_at, bytes_of_out):
    """Call the function whose address is a place's fourth number. So it is compiled once, and only if there are such
    weights."""

    def generate(_, builder, __, arguments):
        kind = ir.FunctionType(ir.VoidType(), [BYTE] * 9)
        function = load(builder, offset(builder, arguments[0], 24), BYTE)
        builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)

    return types.void(*[types.int64] * 9), generate


@lru_cache
def multiplier(form: str, multiply_rows: Callable[..., None]) -> int:
    """Return the address of the compiled function that computes units of products with weights of this form.

    multiply_rows: the one here, or that of codes.py or tiles.py.
    """
    number = NUMBER[form]

    def multiply_units(place_at, x_at, bytes_of_x, rows, ins, first, last, out_at, bytes_of_out):
        place = array(place_at, 3, numpy.int64)
        multiply_rows(place, x_at, bytes_of_x, rows, ins, first, last, out_at, bytes_of_out, number)

    arguments = types.void(*[types.int64] * 9).args, types.void
    function = CFunc(multiply_units, arguments, {}, {"error_model": "numpy"})
    with kept(function, multiply_units):
        function.compile()
    _functions.append(function)
    return function.address


def multiply_rows(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number):
    """out[rows, 32 * first : 32 * last] = x[rows, ins] times these units of a weight whose form is that of `number`."""


@overload(multiply_rows, jit_options={"error_model": "numpy"})
def _multiply_rows(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number):
    form = FORM[number]
    step, quantized, multiply_some = STEP[form], HEADER[form] > 0, in_parts(multiply, form, MAX_ROWS)
    multiply_both = multiply_some if quantized else in_parts(partial(multiply, units=2), form, MAX_ROWS // 2)
    pairs = int(form == "bfloat16" and HAS_PAIRS)

    def multiply_rows(place, x, bytes_of_x, rows, ins, first, last, out, bytes_of_out, number):
        unit, line, groups = first, place[2], (ins + 31) // 32
        behind = groups * 128
        x += pairs * behind_sums(groups)
        groups, steps = (groups, 32 // step) if quantized else (1, (ins + step - 1) // step)
        while unit < last:
            start, to = unit * 128, out + 128 * unit
            weight = place[0] + start // line * place[1] + start % line
            if line == 256 and unit % 2 == 0 and unit + 1 < last:  # a block of 64: memory is fastest in order
                multiply_both(weight, line, groups, steps, x, bytes_of_x, behind, rows, to, bytes_of_out)
                unit += 2
            else:
                multiply_some(weight, line, groups, steps, x, bytes_of_x, behind, rows, to, bytes_of_out)
                unit += 1

    return multiply_rows


def in_parts(multiply: Callable[[str, int], Callable[..., None]], form: str, most: int) -> Callable[..., None]:
    """Return what calls a kernel of `multiply` for up to `most` rows, 8, 4, 2 or 1, until none is left."""
    one, two, four, eight = (multiply(form, rows) for rows in (1, 2, 4, 8))

    @njit(error_model="numpy")
    def multiply_some(weight, line, groups, steps, x, bytes_of_x, behind, rows, out, bytes_of_out):
        while rows > 0:
            if rows >= 8 and most >= 8:
                eight(weight, line, groups, steps, x, bytes_of_x, behind, out, bytes_of_out)
                done = 8
            elif rows >= 4 and most >= 4:
                four(weight, line, groups, steps, x, bytes_of_x, behind, out, bytes_of_out)
                done = 4
            elif rows >= 2 and most >= 2:
                two(weight, line, groups, steps, x, bytes_of_x, behind, out, bytes_of_out)
                done = 2
            else:
                one(weight, line, groups, steps, x, bytes_of_x, behind, out, bytes_of_out)
                done = 1
            x, out, rows = x + done * bytes_of_x, out + done * bytes_of_out, rows - done

    return multiply_some


def unpack(bits, place, to, ins, unit, like):
    """Write a unit of a weight of 8 or 4 bits to `to`, which has the type of `like`."""


@overload(unpack, jit_options={"error_model": "numpy"})
def _unpack(bits, place, to, ins, unit, like):
    number = "float32" if isinstance(like.dtype, types.Float) else "bfloat16"
    bits8, bits4 = (unpack_unit(form, number) for form in ("8 bits", "4 bits"))
    each, bytes8, bytes4 = STEP[number], BYTES_OF_GROUP["8 bits"], BYTES_OF_GROUP["4 bits"]

    def unpack(bits, place, to, ins, unit, like):
        start, line = unit * 128, to[2]
        out, step = to[0] + start // line * to[1] + start % line, 32 // bits
        for group in range((ins + 31) // 32):
            steps, target = min(32, ins - 32 * group) // step, out + 32 // each * group * line
            if bits == 8:
                bits8(place[0] + unit * place[1] + group * bytes8, steps, target, line)
            else:
                bits4(place[0] + unit * place[1] + group * bytes4, steps, target, line)

    return unpack
