"""Where numba keeps compiled kernels: in the user's cache folder, named by contents, for all copies of the course.

A second clone, a learner's folder and a temporary copy load what the first has compiled. A folder is named by all that
its kernels are made of: their file, those whose functions they contain, and the versions of numba and llvmlite. In it
numba tells processors and versions of Python apart. None of this is in `numba.config`, which numba fills from the
environment again as soon as a variable there has changed.

NUMBA_CACHE_DIR, or XDG_CACHE_HOME on Linux, names another place. Where it cannot be written, or where no variable names
it and there is no home or no package platformdirs, each start compiles.
"""

import hashlib
import itertools
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from filelock import FileLock
from numba.core import bytecode, caching

CACHE = os.environ.get("NUMBA_CACHE_DIR")
if not CACHE:
    with suppress(ImportError, RuntimeError):  # RuntimeError: no home, as in some containers
        from platformdirs import user_cache_path

        CACHE = user_cache_path()
FOLDER = Path(CACHE) / "llm-serving-course" / "kernels" if CACHE else None
# Kernels contain functions and constants of these files.
WITHIN = ("kept_kernels.py", "numba_basics.py", "blocks.py", "codes.py", "tiles.py", "../attention/int8.py")

# numba numbers the functions of a process from 1, so that two of one name and type are different symbols. If kernels
# that two processes compiled had the same number, a third process would run one in the place of the other.
bytecode.FunctionIdentity._unique_ids = itertools.count(secrets.randbits(48))


class ByContents(caching.InTreeCacheLocator):
    """Keep the kernels of a file in a folder that is named by its contents."""

    def __init__(self, function: Any, file: str):
        super().__init__(function, file)
        parts = [
            numba.__version__,
            llvmlite.__version__,
            *((Path(__file__).parent / name).read_bytes() for name in (*WITHIN, file)),
        ]
        self._cache_path = str(FOLDER / hashlib.sha256(repr(parts).encode()).hexdigest()[:16])


class CompiledByContents(caching.CompileResultCacheImpl):
    _locator_classes = (ByContents,)


class KeptKernel(caching.FunctionCache):
    """One kernel on disk. One that cannot be read is compiled, and one that cannot be written is not kept."""

    _impl_class = CompiledByContents

    def load_overload(self, *key: Any) -> Any:
        try:
            kernel = super().load_overload(*key)
        except Exception:  # a damaged file: unpickling raises any type
            kernel = None
            with suppress(OSError):
                self.flush()
        if kernel is None:
            say_compiling("once on a machine")
        return kernel

    def save_overload(self, *key_and_kernel: Any) -> None:
        with suppress(OSError):
            super().save_overload(*key_and_kernel)


@contextmanager
def kept(dispatcher: Any, function: Callable[..., None]) -> Iterator[None]:
    """While a kernel is compiled, let numba look for it on disk and keep it there. Tell the user if it is compiled.

    Processes that start together compile it once: the others wait, and load it.
    """
    if FOLDER is None:
        say_compiling("at each start: there is no home or no package platformdirs, and no NUMBA_CACHE_DIR")
        yield
        return
    with ExitStack() as stack:
        try:
            FOLDER.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(FOLDER / "lock"))
            dispatcher._cache = KeptKernel(function)
        except (OSError, RuntimeError):  # RuntimeError: numba cannot write to the folder
            say_compiling(f"at each start: {FOLDER} cannot be written, and NUMBA_CACHE_DIR names another place")
        yield


@lru_cache
def say_compiling(often: str) -> None:
    print(f"compiling kernels for this processor (a few seconds, {often})", file=sys.stderr, flush=True)
