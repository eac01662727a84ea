"""numba's kernels are loaded when an engine is ready, compiled again when their source changes, and safe on threads."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("numba")

from common.acceleration.accelerate import make_engine
from common.attention import numba_backend
from common.fused import numba_kernels
from common.loader import load_model
from common.sampling import SamplingParams
from common.stages import ROOT, load_engine, stage_folders

PROBE = """
import os
import torch
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
        put(out[i:], f4(i))

@kernel("void(i8, i8)")
def add_ten(at, size):
    out = array(at, size, f4)
    for i in prange(size):
        put(out[i:], out[i] + f4(10))

fill((out := torch.empty(3)).data_ptr(), len(out))
add_ten(out.data_ptr(), len(out))
print(out.tolist())
"""
RIGHT = "[10.0, 11.0, 12.0]\n"
TWO_THREADS = """
import threading, numba, torch
from common.fused import numba_kernels
numba_kernels.add_norm(None, torch.ones(1, 8), torch.ones(8), 0.0)

def work():
    torch.set_num_threads(2)
    numba_kernels.use_threads(1 << 20)
    x = torch.ones(512, 512)
    for _ in range(300):
        numba_kernels.add_norm(None, x, x[0], 0.0)

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(numba.threading_layer())
"""


def python(program: str, folder, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("stage", stage_folders(ROOT), ids=lambda stage: stage.name[:2])
def test_an_engine_is_ready_when_its_kernels_are_loaded(stage, monkeypatch):
    numba_kernels.compiled.cache_clear()
    numba_backend.compiled.cache_clear()
    engine = make_engine(load_engine(stage), load_model(device="cpu"))
    assert numba_kernels.compiled.cache_info().currsize == 1
    assert numba_backend.compiled.cache_info().currsize == (stage.name >= "05"), "nothing waits for what is not used"

    def late(signature):
        raise AssertionError("a request waits for kernels")

    for module in (numba_kernels, numba_backend):
        monkeypatch.setattr(module, "kernel", late)
    engine.generate(["The capital of France is", "Once upon a time there was " * 20], SamplingParams(max_tokens=3))


def test_every_kernel_is_found_on_disk_the_second_time():
    for _ in range(2):
        for known in (numba_kernels.compiled, numba_backend.compiled, numba_backend.writer):
            known.cache_clear()
        kernels = []
        for dtype in (torch.float32, torch.bfloat16):
            kernels += [*numba_kernels.compiled(dtype), numba_backend.compiled(dtype, 64), numba_backend.writer()]
    assert all(sum(kernel.stats.cache_hits.values()) == 1 for kernel in kernels)
    assert not any(kernel.stats.cache_misses for kernel in kernels)


@pytest.fixture
def probe(tmp_path):
    """Run PROBE in a copy of what it needs, with a cache folder of the user; return what it has printed."""
    cache = tmp_path / "cache"

    def run(name="course", basics=None, **variables):
        folder = tmp_path / name
        for file in ("common/process.py", "common/fused/kept_kernels.py", "common/fused/numba_basics.py"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        if basics:
            path = folder / "common/fused/numba_basics.py"
            path.write_text(path.read_text().replace(*basics))
        (folder / "probe.py").write_text(PROBE)
        done = python("import probe", folder, **{"XDG_CACHE_HOME": str(cache), "NUMBA_CACHE_DIR": "", **variables})
        kept = [path for path in folder.rglob("*") if not path.is_dir() and path.suffix not in (".py", ".pyc")]
        assert not kept, "kernels belong into the user's cache folder"
        return done.stdout, done.stderr.count("compiling kernels")

    return run


def test_copies_of_the_course_share_kernels_until_a_function_within_them_changes(probe, tmp_path):
    """numba by itself looks at the file of the kernel, and not at the one that `narrow` is in."""
    with ThreadPoolExecutor() as pool:  # two that start together: one compiles, the other waits
        both = list(pool.map(probe, ("course", "clone")))
    assert sorted(both) == [(RIGHT, 0), (RIGHT, 1)]
    [kept] = tmp_path.glob("cache/*/kernels")
    for number in range(40):  # of courses that are gone
        (kept / f"old-{number}").mkdir()
        os.utime(kept / f"old-{number}", (number, number))
    assert probe("my", basics=("lambda x, like: x\n", "lambda x, like: -x\n")) == ("[-10.0, -9.0, -8.0]\n", 1)
    assert not (kept / "old-0").exists() and (kept / "old-39").exists(), "what was used last stays"
    assert probe() == (RIGHT, 0)


def test_kernels_are_compiled_where_they_cannot_be_kept_or_read(probe, tmp_path):
    (tmp_path / "file").write_text("")
    assert probe(XDG_CACHE_HOME=str(tmp_path / "file")) == (RIGHT, 1)
    for damaged in (False, True):
        for path in tmp_path.glob("cache/*/kernels/*/*"):
            path.write_bytes(path.read_bytes()[:100])
        assert probe() == (RIGHT, 1), damaged
    assert probe("clone") == (RIGHT, 0), "a damaged one is replaced"


def test_two_threads_may_run_kernels_whatever_threads_numba_has():
    """numba's own threads, which it has on a Mac, abort a process in which two threads use them at once."""
    done = python(TWO_THREADS, ROOT, NUMBA_THREADING_LAYER="workqueue", NUMBA_NUM_THREADS="2", OMP_NUM_THREADS="2")
    assert done.stdout == "workqueue\n"
