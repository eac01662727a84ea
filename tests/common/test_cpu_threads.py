"""Threads of the CPU's kernels."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

from common import process
from common.fused import numba_basics
from common.stages import ROOT

# ---- Threads, in processes of their own: a process has the number of threads that it starts with ----

KERNELS = """
import torch
from common.attention import PagedBatch, choose_attention
from common.fused import numba_kernels
from common.fused.numba_basics import FEW_NUMBERS, use_threads
from common.loader import load_model

def run(dtype):
    torch.manual_seed(0)
    x, residual, gate_up = (torch.randn(33, size).to(dtype) for size in (256, 256, 1376))
    yield numba_kernels.add_norm(x, residual, torch.ones(256, dtype=dtype), 1e-6)
    yield numba_kernels.silu_mul(gate_up)
    table = torch.randn(40, 64)
    heads = numba_kernels.Rotation(torch.arange(33), table, table, None, None, 0.0, 4, 2)
    q, k, v = heads.heads(torch.randn(33, 512).to(dtype))
    yield from (q.contiguous(), k)
    attention, _ = choose_attention("numba", torch.device("cpu"), dtype, 64, 16)
    pages = torch.randn(2, 9, 16, 2, 64).to(dtype)
    tables = [[i % 7, 8, 7] for i in range(33)]
    batch = PagedBatch.pack([1] * 33, [5 + i for i in range(33)], tables, torch.arange(33), 16)
    attention.write(k, v, *pages, batch.slot_mapping)
    yield attention.attend(q, *pages, attention.prepare(batch))
    token_ids = torch.arange(4)  # few enough for products in kernels
    yield load_model(device="cpu", dtype=str(dtype)[6:]).model(token_ids, token_ids, lambda layer, q, k, v: q)
"""


def run_python(program: str, threads: int) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def kernels_on_two_threads() -> list[str]:
    """What a process has printed that starts numba with torch on one thread of two: how many each has, here and on
    another thread; then whether all kernels give the same on one thread and on two."""
    program = """
import numba, threading
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
    return run_python("import torch\ntorch.set_num_threads(1)\n" + KERNELS + program, threads=2).splitlines()


def test_results_do_not_depend_on_the_number_of_threads(kernels_on_two_threads):
    assert kernels_on_two_threads[1:] == ["the same"]


def test_numba_leaves_torch_its_number_of_threads(kernels_on_two_threads):
    """They share OpenMP, and numba's start sets the calling thread's number to all cores."""
    assert kernels_on_two_threads[0] == "[1, 1, 1]"


# ---- Threads beside other programs ----


class Machine:
    """A clock, /proc/stat of two cores, and this process's processor time."""

    def __init__(self, monkeypatch, folder):
        self.now, self.own, self.busy, self.stat = 100.0, 50.0, [70.0, 30.0], folder / "stat"
        monkeypatch.setattr(process, "STAT", self.stat)
        monkeypatch.setattr(process.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(process.time, "process_time", lambda: self.own)
        monkeypatch.setattr(process.os, "sched_getaffinity", lambda _: {0, 2})
        self.pass_by(0, 0, 0)

    def pass_by(self, seconds, own, others):
        """others: seconds of processor time on the two cores together."""
        tick = os.sysconf("SC_CLK_TCK")
        self.now, self.own, self.busy[0], self.busy[1] = (
            self.now + seconds, self.own + own, self.busy[0] + own, self.busy[1] + others
        )  # fmt: skip
        cores = [f"cpu{i} {int(busy * tick)} 0 0 999 0 0 0 0" for i, busy in ((0, self.busy[0]), (2, self.busy[1]))]
        self.stat.write_text("\n".join(["cpu 1 2 3 4 5 6 7 8", *cores, "cpu1 777777 0 0 0 0 0 0", "intr 1"]))


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return Machine(monkeypatch, tmp_path)


def test_cores_that_other_programs_use_are_not_free(machine):
    cores = process.FreeCores()
    cores.look()
    for own, others, free in ((2.0, 0.0, 2), (1.3, 0.7, 1), (0.3, 0.4, 2), (1.0, 1.0, 1), (0.2, 1.8, 1), (0.0, 0.0, 2)):
        machine.pass_by(0.06, 0.06 * own, 0.06 * others)
        before = cores.count
        assert cores.look() == before, "0.06 s are too short to tell"
        machine.pass_by(0.06, 0.06 * own, 0.06 * others)
        assert cores.look() == free, (own, others)


def test_without_proc_stat_all_cores_are_free(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "STAT", tmp_path / "none")
    assert process.FreeCores().look() == os.cpu_count()


def test_torch_gives_up_threads_and_gets_them_back(machine, monkeypatch):
    count = [2]
    monkeypatch.setattr(numba_basics.torch, "get_num_threads", lambda: count[0])
    monkeypatch.setattr(numba_basics.torch, "set_num_threads", lambda number: count.__setitem__(0, number))
    threads = numba_basics.TorchThreads()
    threads.adapt()
    seen = []
    for others in (0.0, 1.0, 0.0):
        machine.pass_by(1.0, 1.0, others)
        threads.adapt()
        seen += count
    assert seen == [2, 1, 2]
    count[0] = 1  # as a rank does, for as long as it likes
    machine.pass_by(1.0, 1.0, 0.0)
    threads.adapt()
    assert count == [1]
