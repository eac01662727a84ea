"""Doctor: every check is one line, which says what to do where something is missing."""

import json
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from common.setup import doctor, machine
from common.setup.doctor import NEEDED, OK, OPTIONAL
from tests.helpers.incomplete_stages import copy_entry_point

GB = 10**9
PACE = {"said": "one step takes 6.0 ms", "device": "cpu", "cuda": None}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("COURSE_NO_VENV", "COURSE_KIT", "OMP_NUM_THREADS", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)


def fake(monkeypatch, name: str, answer) -> None:
    """Have a function of `machine` or `doctor` answer as given."""
    monkeypatch.setattr(machine if hasattr(machine, name) else doctor, name, lambda *_: answer)


def test_doctor_runs_before_anything_is_installed(tmp_path):
    """Through the door, in a course without .venv, on a Python without any package."""
    copy_entry_point(tmp_path)
    (tmp_path / "requirements.txt").write_text("torch\n")
    command = [sys.executable, "-S", str(tmp_path / "course.py"), "doctor"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = result.stdout.splitlines()
    marks = [line[:2] for line in lines[: lines.index("")]]
    assert set(marks) <= {OK, OPTIONAL, NEEDED} and len(marks) >= 9, result.stdout + result.stderr
    assert result.returncode == (1 if NEEDED in marks else 0)


def gpu_line(gpu: str | None, measured: dict):
    return partial(doctor.gpu_line, gpu, measured)


CHECKS = [
    (doctor.python, {"find_spec": None}, NEEDED, "apt install python3-venv"),
    (doctor.memory, {"free_memory": GB}, NEEDED, "1.0 GB free: close programs"),
    (doctor.cores, {"core_quota": 1.5, "OMP_NUM_THREADS": "1"}, OK, "1"),
    (doctor.cores, {"core_quota": 1.5}, OPTIONAL, "4 threads that wait for each other: set OMP"),
    (doctor.cores, {"core_quota": None, "OMP_NUM_THREADS": "2"}, OPTIONAL, "4, and OMP_NUM_THREADS=2: unset it"),
    (doctor.others, {"busy_cores": (1.5, ["chrome", "python"])}, OPTIONAL, "1.5 cores are busy (chrome, python)"),
    (doctor.network, {"answers": False, "usable_python": None, "COURSE_KIT": "/kits"}, OK, ""),
    (doctor.network, {"answers": False, "usable_python": None}, NEEDED, ""),
    (doctor.compiler, {"find_gpu": None, "PATH": ""}, OPTIONAL, ""),
    (doctor.compiler, {"find_gpu": "H100, 580.1, 80 GB", "PATH": ""}, NEEDED, ""),
    (doctor.environment, {"usable_python": None, "COURSE_KIT": "/kits"}, NEEDED, "holds no kit named"),
    (gpu_line(None, PACE), {}, OK, "everything runs on the CPU"),
    (gpu_line("", {}), {}, OPTIONAL, "`nvidia-smi` lists"),
    (gpu_line("H100, 535.1, 80 GB", PACE), {}, OPTIONAL, "delete .venv"),
    (gpu_line("H100, 535.1, 80 GB", PACE | {"cuda": "13.0"}), {}, OPTIONAL, "too old for PyTorch's CUDA 13.0"),
    (gpu_line("H100, 580.1, 80 GB", PACE | {"cuda": "13.0", "device": "cuda"}), {}, OK, "580.1"),
]


@pytest.mark.parametrize(("check", "answers", "mark", "said"), CHECKS)
def test_a_check_says_what_is_missing_and_what_to_do(monkeypatch, check, answers, mark, said):
    for name, answer in ({"usable_cores": 4, "said_by": None} | answers).items():
        if name.isupper():
            monkeypatch.setenv(name, answer)
        else:
            fake(monkeypatch, name, answer)
    line = check()
    assert line.mark == mark and said in line.text


def test_what_a_container_may_use_is_read_from_its_limits(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GB))
    for limits, cores, gigabytes in (
        ({}, None, 8),
        ({"memory.max": "max\n", "cpu.max": "max 100000\n"}, None, 8),
        ({"memory.max": "4000000000\n", "cpu.max": "150000 100000\n"}, 1.5, 4),
    ):
        for name, limit in limits.items():
            (tmp_path / name).write_text(limit)
        assert (machine.core_quota(), machine.free_memory()) == (cores, gigabytes * GB)


def test_a_taken_port_is_answered_with_a_free_one(monkeypatch):
    with doctor.socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(doctor, "PORT", taken.getsockname()[1])
        line = doctor.port()
    assert line.mark == OPTIONAL and "taken by another program: start servers with --port" in line.text
    assert doctor.port().mark == OK


def test_timing_a_step_is_told_in_a_line(monkeypatch):
    said = ["was not ready in 120 s: end what keeps the cores busy", "does not run: the reason.", PACE["said"]]
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nthe reason\n")
    answers = [subprocess.TimeoutExpired("", 120), failed, subprocess.CompletedProcess([], 0, json.dumps(PACE))]
    fake(monkeypatch, "usable_python", "python")
    monkeypatch.setattr(doctor.subprocess, "run", Mock(side_effect=answers))
    for mark, text in zip((NEEDED, NEEDED, OK), said, strict=True):
        measured, line = doctor.measure_pace()
        assert bool(measured) == (mark == OK) and line.mark == mark and text in line.text
