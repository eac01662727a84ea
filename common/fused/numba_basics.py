"""What numba's kernels are written with: tensors by address, prefetch, bfloat16, an exponential.

A kernel takes a tensor as `data_ptr()`, from which `array` makes an array. Tensor.numpy() costs a microsecond
for each tensor, as much as most kernels take for a token. numpy has no bfloat16: such a tensor is an array of uint16,
and its numbers become float32 in registers. So one source serves both types: `widen` and `narrow` leave float32 alone.
"""

import threading
from collections.abc import Callable

import numba
import numpy
import torch
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from ..process import FreeCores
from .kept_kernels import kept

# Sums may be taken in any order, so that vector registers hold parts of them. Infinities and NaN stay what they are.
FAST = {"reassoc", "contract", "nsz", "arcp"}
FEW_NUMBERS = 2**15  # some 10 microseconds of work
f4, i4, u4 = numpy.float32, numpy.int32, numpy.uint32
ONE_KERNEL = threading.Lock()


class TorchThreads:
    """Lower torch's number of threads while other programs compute, and raise it again to what it was given."""

    def __init__(self):
        self.free, self.most, self.set = FreeCores(), 0, 0
        self.count = 1  # threads of the step that runs: its products are cut into as many shares

    def adapt(self) -> None:
        """Call this once a step, on the thread that computes."""
        if torch.get_num_threads() != self.set:  # Other code has set it: that is the most from now on.
            self.most = self.set = torch.get_num_threads()
        if self.most > 1 and (count := min(self.most, self.free.look())) != self.set:
            torch.set_num_threads(count)
            self.set = count


def use_threads(numbers: int) -> int:
    """Let the calling thread's kernels use as many threads as torch does, or one where waking the others would take
    longer than the work; return how many. numbers: about how many each kernel computes.

    numba keeps this for each thread: the engine's does not take over another's number, but defaults to all cores.
    """
    count = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS) if numbers >= FEW_NUMBERS else 1
    numba.set_num_threads(count)
    return count


def launch_threads() -> None:
    """Let numba start its threads, and restore torch's number: numba and torch share OpenMP, and numba sets the
    calling thread's number, which is torch's too, to all cores."""
    count = torch.get_num_threads()
    use_threads(FEW_NUMBERS)
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


launch_threads()  # Here, since loading a kernel would start them, too.


def kernel(signature: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compile a function for these types, or load it from disk; its `prange` runs on several threads.

    numba has threads of its own, "workqueue", where it finds neither OpenMP nor TBB. If two threads of Python use them
    at once, they abort the process: there, kernels wait for each other.
    """

    def compiled(function: Callable[..., None]) -> Callable[..., None]:
        dispatcher = njit(parallel=True, fastmath=FAST, error_model="numpy")(function)
        with kept(dispatcher, function):
            dispatcher.compile(signature)
        dispatcher.disable_compile()  # A call with other types converts its numbers.
        if numba.threading_layer() != "workqueue":
            return dispatcher

        def alone(*arguments) -> None:
            with ONE_KERNEL:
                dispatcher(*arguments)

        return alone

    return compiled


def address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@intrinsic
def pointer(typing_context, address):
    """Return an integer as a pointer."""
    return types.voidptr(address), lambda _, builder, __, values: builder.inttoptr(values[0], cgutils.voidptr_t)


@intrinsic
def prefetch_line(typing_context, address):
    """Let the processor begin to fetch the line of its caches, of 64 bytes, in which this address lies."""

    return types.void(types.int64), lambda _, builder, __, values: fetch(builder, values[0])


def fetch(builder, address, locality: int = 3) -> None:
    """Write LLVM's prefetch of this address. locality: 3 into all caches, 2 into all but the nearest."""
    number, pointer = ir.IntType(32), cgutils.voidptr_t
    function = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], function)
    reading, caches, data = (ir.Constant(number, value) for value in (0, locality, 1))
    builder.call(prefetch, [builder.inttoptr(address, pointer), reading, caches, data])


@njit
def prefetch(address, count):
    """Let the processor begin to fetch `count` bytes that will be read soon: it cannot foresee where they lie."""
    for line in range(address, address + count, 64):
        prefetch_line(line)


@njit
def array(address, shape, number):
    """Return the contiguous tensor at this address, of numbers of this type (float32, or uint16 for bfloat16).

    numba takes it for new memory, and removes writes to it in a `prange` loop that nothing seems to read: `out[i] = x`
    with the loop's own index, unless code after it uses `out`; `out[i, j] = x`, unless the loop or code after it uses
    `out`, as `narrow(x, out[i, j])` does. What a called function writes to `out` stays.
    """
    return carray(pointer(address), shape, number)


def widen(x):
    """Return a number of an array, float32 or the bits of a bfloat16, as float32."""


def narrow(x, like):
    """Return a float32 as the type of `like`: itself, or the bits of the nearest bfloat16, ties to even."""


@overload(widen)
def _widen(x):
    if isinstance(x, types.Float):
        return lambda x: x
    return lambda x: u4(u4(x) << u4(16)).view(f4)


@overload(narrow)
def _narrow(x, like):
    if isinstance(like, types.Float):
        return lambda x, like: x

    def rounded(x, like):
        bits = f4(x).view(u4)
        return numpy.uint16((bits + u4(0x7FFF) + ((bits >> u4(16)) & u4(1))) >> u4(16))

    return rounded


@njit(fastmath={"contract"})  # If not given, the caller's options hold.
def exp(x):
    """Return e**x for a float32, within 2 units in the last place; 1.6e-38 below x = -87, infinity above 88.4.

    numpy.exp would be a call for each number.

    x = n ln 2 + r: 2**n is made from its bits, and e**r is a polynomial (Cephes, expf.c). Adding 1.5 * 2**23 rounds n
    to an integer. A compiler that may reorder sums would remove this, so here it may not.
    """
    x = min(max(x, f4(-87)), f4(89))
    n = (x * f4(1.44269504) + f4(12582912)) - f4(12582912)
    r = (x - n * f4(0.693359375)) + n * f4(2.12194440e-4)
    y = f4(1.9875691500e-4)
    y = y * r + f4(1.3981999507e-3)
    y = y * r + f4(8.3334519073e-3)
    y = y * r + f4(4.1665795894e-2)
    y = y * r + f4(1.6666665459e-1)
    y = y * r + f4(5.0000001201e-1)
    return (y * r * r + r + f4(1)) * i4((i4(n) + i4(127)) << i4(23)).view(f4)
