"""numba's kernels are loaded when an engine is ready, compiled again when their source changes, and safe on threads."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("numba")

from common.attention import numba_backend
from common.fused import numba_kernels
from common.gpu.accelerate import make_engine
from common.loader import load_model
from common.sampling import SamplingParams
from common.stages import ROOT, load_engine, stage_folders

PROBE = """
import torch
from numba import njit, prange
from common.fused.numba_basics import array, f4, kernel, narrow

@njit
def put(row, number):
    row[0] = narrow(number, row[0])

@kernel("void(i8, i8)")
def fill(at, size):
    out = array(at, size, f4)
    for i in prange(size):
        put(out[i:], f4(i))

fill((out := torch.empty(3)).data_ptr(), len(out))
print(out.tolist())
"""
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

    def late(signature):
        raise AssertionError("a request waits for kernels")

    for module in (numba_kernels, numba_backend):
        monkeypatch.setattr(module, "kernel", late)
    engine.generate(["The capital of France is", "Once upon a time there was " * 20], SamplingParams(max_tokens=3))


def test_kernels_stay_on_disk_until_a_function_within_them_changes(tmp_path):
    """numba by itself looks at the file of the kernel, and not at the one that `narrow` is in."""
    for file in ("common/process.py", "common/fused/numba_basics.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    probe, basics = tmp_path / "probe.py", tmp_path / "common/fused/numba_basics.py"
    probe.write_text(PROBE)
    with ThreadPoolExecutor() as pool:  # two that start together: one compiles, the other waits
        both = list(pool.map(lambda _: python("import probe", tmp_path), range(2)))
    assert [one.stdout for one in both] == ["[0.0, 1.0, 2.0]\n"] * 2
    assert "".join(one.stderr for one in both).count("compiling kernels") == 1
    basics.write_text(basics.read_text().replace("lambda x, like: x\n", "lambda x, like: -x\n"))
    assert python("import probe", tmp_path).stdout == "[-0.0, -1.0, -2.0]\n"
    nowhere = python("import probe", tmp_path, NUMBA_CACHE_LOCATOR_CLASSES="_IPythonCacheLocator")
    assert nowhere.stdout == "[-0.0, -1.0, -2.0]\n", "where nothing can be written"


def test_two_threads_may_run_kernels_whatever_threads_numba_has():
    """numba's own threads, which it has on a Mac, abort a process in which two threads use them at once."""
    done = python(TWO_THREADS, ROOT, NUMBA_THREADING_LAYER="workqueue", NUMBA_NUM_THREADS="2", OMP_NUM_THREADS="2")
    assert done.stdout == "workqueue\n"
