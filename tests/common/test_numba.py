"""numba's kernels: loaded when an engine is ready, compiled again when their source changes, and polite on threads."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("numba", exc_type=ImportError)

from common import process
from common.acceleration.accelerate import make_engine
from common.attention import numba_backend
from common.fused import kept_kernels, numba_basics, numba_kernels
from common.loader import load_model
from common.sampling import SamplingParams
from common.stages import ROOT, load_engine

PROBE = """
import os
import sys
import threading
import numba
import numpy
from numba import njit, prange
from common.fused.numba_basics import array, f4, kernel, narrow

os.environ["NUMBA_WARNINGS"] = "0"  # numba reads all of its settings again when it compiles

@njit
def put(row, number):
    row[0] = narrow(number, row[0])

@kernel("void(i8, i8)")
def fill(at, size):
    out = array(at, size, f4)
    for i in prange(size):
        put(out[i:], f4(i + 10))

def work(out):
    for _ in range(300):
        fill(out.ctypes.data, len(out))

outs = numpy.empty((2, 3), "f4")
threads = [threading.Thread(target=work, args=[out]) for out in outs]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert numba.threading_layer() == "workqueue" and (outs[0] == outs[1]).all()
print(outs[0].tolist())
print(numba.cfunc("i8(i8)")(lambda x: x).native_name, file=sys.stderr)
"""
NO_TORCH = "Tensor, get_num_threads, set_num_threads = object, lambda: 2, print"  # torch takes seconds to import.
RIGHT = "[10.0, 11.0, 12.0]\n"


def python(program: str, folder, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_an_engine_is_ready_when_its_kernels_are_loaded(monkeypatch):
    numba_kernels.compiled.cache_clear()
    numba_backend.compiled.cache_clear()
    engine = make_engine(load_engine("08"), load_model(device="cpu"), token_budget=64, num_draft_tokens=2)
    for module in (numba_kernels, numba_backend):
        monkeypatch.setattr(module, "kernel", Mock(side_effect=AssertionError("a request waits for kernels")))
    engine.generate(["The capital of France is", "Once upon a time there was " * 20], SamplingParams(max_tokens=3))


def test_every_kernel_is_found_on_disk_the_second_time():
    for _ in range(2):
        for known in (numba_kernels.compiled, numba_backend.compiled, numba_backend.writer):
            known.cache_clear()
        kernels = [numba_backend.writer(), numba_backend.compiled(torch.bfloat16, 64)]
        kernels += vars(numba_kernels.compiled(torch.bfloat16)).values()
    assert all(sum(kernel.stats.cache_hits.values()) == 1 for kernel in kernels)
    assert not any(kernel.stats.cache_misses for kernel in kernels)


@pytest.fixture
def probe(tmp_path):
    """Run PROBE in a copy of what it needs, with a cache folder of the user; return what it has printed.

    Its two threads run one kernel at once. numba's own threads, which it has on a Mac, abort a process that does so.
    No two processes may name their kernels alike: weights of 8 and 4 bits gave NaN where each had been compiled in a
    process of its own, and a third kept both.
    """
    names = set()
    threads = {"NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    user = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "NUMBA_CACHE_DIR": ""}

    def run(name="course", basics=None, **variables):
        folder = tmp_path / name
        for file in ("process.py", *(f"fused/{name}" for name in ("kept_kernels.py", *kept_kernels.WITHIN))):
            file = f"common/{file}"
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        if basics:
            path = folder / "common/fused/numba_basics.py"
            path.write_text(path.read_text().replace(*basics))
        (folder / "probe.py").write_text(PROBE)
        (folder / "torch.py").write_text(NO_TORCH)
        done = python("import probe", folder, **{**threads, **user, **variables})
        kept = [path for path in folder.rglob("*") if not path.is_dir() and path.suffix not in (".py", ".pyc")]
        assert not kept, "kernels belong into the user's cache folder"
        name = done.stderr.split()[-1]
        assert name not in names
        names.add(name)
        return done.stdout, done.stderr.count("compiling kernels")

    return run


def test_copies_of_the_course_share_kernels_until_a_function_within_them_changes(probe, tmp_path):
    """numba by itself looks at the file of the kernel, and not at the one that `narrow` is in."""
    with ThreadPoolExecutor() as pool:  # two that start together: one compiles, the other waits
        both = list(pool.map(probe, ("course", "clone")))
    assert sorted(both) == [(RIGHT, 0), (RIGHT, 1)]
    [kept] = tmp_path.glob("cache/*/kernels")
    assert probe("my", basics=("lambda x, like: x\n", "lambda x, like: -x\n")) == ("[-10.0, -11.0, -12.0]\n", 1)
    for path in kept.glob("*/*"):
        path.write_bytes(path.read_bytes()[:100])
    assert probe() == (RIGHT, 1), "a damaged one is compiled again"
    assert max(path.stat().st_size for path in kept.glob("*/*.nbc")) > 100, "and replaced"


def test_kernels_are_compiled_where_they_cannot_be_kept(probe, tmp_path):
    (tmp_path / "file").write_text("")
    assert probe(XDG_CACHE_HOME=str(tmp_path / "file")) == (RIGHT, 1)
    no_home = "def user_cache_path():\n    raise RuntimeError('no home')"
    (tmp_path / "course/platformdirs.py").write_text(no_home)
    assert probe() == (RIGHT, 1)
    assert probe(NUMBA_CACHE_DIR=str(tmp_path / "named")) == (RIGHT, 1)
    assert [*tmp_path.rglob("named/*/kernels/*/*.nbc")], "a folder that is named keeps them"


# ---- Threads ----

BOTH_NUMBERS = """
import threading, torch
from dataclasses import replace

torch.set_num_threads(1)
import numba
from common.attention import PagedBatch, choose_attention
from common.fused import fuse, numba_kernels
from common.fused.numba_basics import FEW_NUMBERS, use_threads
from tests.helpers.small_models import SMALL, random_model

def run(dtype):
    torch.manual_seed(0)
    x, residual, gate_up = (torch.randn(33, size).to(dtype) for size in (256, 256, 1376))
    yield numba_kernels.add_norm(x, residual, torch.ones(256, dtype=dtype), 1e-6)
    yield numba_kernels.silu_mul(gate_up)
    table = torch.randn(40, 64)
    heads = numba_kernels.Rotation(torch.arange(33), table, table, None, None, 0.0, 4, 2)
    q, k, v = heads.heads(torch.randn(33, 512).to(dtype))
    yield from (q.contiguous(), k)
    attention, _ = choose_attention("numba", torch.device("cpu"), dtype, 64)
    pages = torch.randn(2, 9, 16, 2, 64).to(dtype)
    tables = [[i % 7, 8, 7] for i in range(33)]
    batch = PagedBatch.pack([1] * 33, [5 + i for i in range(33)], tables, torch.arange(33), 16)
    attention.write(k, v, *pages, batch.slot_mapping)
    yield attention.attend(q, *pages, attention.prepare(batch))
    token_ids = torch.arange(9)
    config = replace(SMALL, hidden_size=256, intermediate_size=688, head_dim=64)
    model = fuse(random_model(config, dtype=dtype), "numba")
    model.most_few = 9  # products in kernels
    yield model(token_ids, token_ids, lambda layer, q, k, v: q)

counts = [torch.get_num_threads()]

def engine_thread():
    use_threads(FEW_NUMBERS)
    counts.extend([torch.get_num_threads(), numba.get_num_threads()])

thread = threading.Thread(target=engine_thread)
thread.start()
thread.join()
print(counts)
for dtype in (torch.float32, torch.bfloat16):
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        use_threads(FEW_NUMBERS)
        assert numba.get_num_threads() == torch.get_num_threads() == count
        results.append(list(run(dtype)))
    assert all(torch.equal(one, two) for one, two in zip(*results)) and len(results[0]) == 6
print("the same")
"""


def test_numba_leaves_torch_its_threads_and_results_do_not_depend_on_their_number():
    """They share OpenMP, and numba's start sets the calling thread's number to all cores. In a process of its own: it
    says how many threads each has, here and on another thread, and whether all kernels give the same on one and two."""
    done = python(BOTH_NUMBERS, ROOT, OMP_NUM_THREADS="2", NUMBA_NUM_THREADS="2")
    assert done.stdout == "[1, 1, 1]\nthe same\n"


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_torch_leaves_cores_to_other_programs_and_takes_them_back(two_threads, monkeypatch, tmp_path):
    """On a machine of two cores: seconds pass, in which this process and others take processor time."""
    here = SimpleNamespace(now=100.0, own=50.0, others=30.0)
    clock = SimpleNamespace(monotonic=lambda: here.now, process_time=lambda: here.own)
    monkeypatch.setattr(process, "STAT", tmp_path / "stat")
    monkeypatch.setattr(process, "time", clock)
    monkeypatch.setattr(process.os, "sched_getaffinity", lambda _: {0, 2})
    threads, tick = numba_basics.TorchThreads(), os.sysconf("SC_CLK_TCK")

    def after(seconds: float, own: float, others: float) -> int:
        here.now += seconds
        here.own += own
        here.others += others
        used = f"cpu0 {int(here.own * tick)} 0 0 999 0 0 0 0\ncpu2 {int(here.others * tick)} 0 0 999 0 0 0 0"
        process.STAT.write_text(f"cpu 1 2 3 4 5 6 7 8\n{used}\ncpu1 777777 0 0 0 0 0 0\nintr 1")
        threads.adapt()
        return torch.get_num_threads()

    after(0, 0, 0)
    for own, others, free in ((2.0, 0.0, 2), (1.3, 0.7, 1), (0.3, 0.4, 2), (0.2, 1.8, 1), (0.0, 0.0, 2)):
        assert after(1.0, own, others) == free, (own, others)
    torch.set_num_threads(1)  # A rank sets one thread, and keeps it.
    assert after(1.0, 1.0, 0.0) == 1
    monkeypatch.setattr(process, "STAT", tmp_path / "none")
    assert process.FreeCores().look() == os.cpu_count(), "where nothing can be read, all are free"
