"""Doctor: every check is one line, which says what to do where something is missing."""

import json
import subprocess
import sys
from types import SimpleNamespace

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


def fake(monkeypatch, **answers) -> None:
    """Have functions of `machine` and `doctor` answer as given."""
    for name, answer in answers.items():
        monkeypatch.setattr(machine if hasattr(machine, name) else doctor, name, lambda *_, answer=answer: answer)


def test_doctor_runs_before_anything_is_installed(tmp_path):
    """Through the door, in a course without .venv, on a Python without any package."""
    copy_entry_point(tmp_path)
    (tmp_path / "requirements.txt").write_text("torch\n")
    command = [sys.executable, "-S", str(tmp_path / "course.py"), "doctor"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = result.stdout.splitlines()
    marks = [line[:2] for line in lines[: lines.index("")]]
    assert set(marks) <= {OK, OPTIONAL, NEEDED} and len(marks) >= 11, result.stdout + result.stderr
    assert result.returncode == (1 if NEEDED in marks else 0)


CHECKS = [
    (doctor.python, {"find_spec": None}, {}, NEEDED, "apt install python3-venv"),
    (doctor.memory, {"free_memory": GB}, {}, NEEDED, "1.0 GB free: close programs"),
    (doctor.memory, {"free_memory": None}, {}, OK, "knows once .venv is there"),
    (doctor.cores, {"core_quota": 1.5}, {"OMP_NUM_THREADS": "1"}, OK, "1"),
    (
        doctor.cores,
        {"core_quota": 1.5},
        {"OMP_NUM_THREADS": ""},
        OPTIONAL,
        "4 threads that wait for each other: set OMP",
    ),
    (doctor.cores, {"core_quota": None}, {"OMP_NUM_THREADS": "2"}, OPTIONAL, "4, and OMP_NUM_THREADS=2: unset it"),
    (doctor.others, {"busy_cores": (1.5, ["chrome", "python"])}, {}, OPTIONAL, "1.5 cores are busy (chrome, python)"),
    (doctor.network, {"answers": False, "usable_python": "python"}, {}, OK, ""),
    (doctor.network, {"answers": False, "usable_python": None}, {"COURSE_KIT": "/kits"}, OK, ""),
    (doctor.network, {"answers": False, "usable_python": None}, {}, NEEDED, ""),
    (doctor.compiler, {"find_gpu": None}, {"PATH": ""}, OPTIONAL, ""),
    (doctor.compiler, {"find_gpu": "H100, 580.1, 80 GB"}, {"PATH": ""}, NEEDED, ""),
    (doctor.environment, {"usable_python": None}, {"COURSE_KIT": "/kits"}, NEEDED, "holds no kit named"),
]


@pytest.mark.parametrize(("check", "answers", "variables", "mark", "said"), CHECKS)
def test_a_check_says_what_is_missing_and_what_to_do(monkeypatch, check, answers, variables, mark, said):
    fake(monkeypatch, **{"usable_cores": 4, "said_by": None} | answers)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
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


@pytest.mark.parametrize(
    ("gpu", "measured", "mark", "said"),
    [
        (None, PACE, OK, "everything runs on the CPU"),
        ("", {}, OPTIONAL, "`nvidia-smi` lists"),
        ("H100, 535.1, 80 GB", {}, OK, "535.1"),
        ("H100, 535.1, 80 GB", PACE, OPTIONAL, "delete .venv"),
        ("H100, 535.1, 80 GB", PACE | {"cuda": "13.0"}, OPTIONAL, "too old for PyTorch's CUDA 13.0"),
        ("H100, 580.1, 80 GB", PACE | {"cuda": "13.0", "device": "cuda"}, OK, "580.1"),
    ],
)
def test_a_gpu_is_told_with_what_keeps_pytorch_from_it(gpu, measured, mark, said):
    line = doctor.gpu_line(gpu, measured)
    assert line.mark == mark and said in line.text


@pytest.mark.parametrize(
    ("status", "output", "mark", "said"),
    [
        (0, json.dumps(PACE), OK, "one step takes 6.0 ms"),
        (1, "", NEEDED, "does not run: the reason."),
        (None, "", NEEDED, "was not ready in 120 s: end what keeps the cores busy"),
    ],
)
def test_timing_a_step_is_told_in_a_line(monkeypatch, status, output, mark, said):
    def run(command, timeout, **options):
        if status is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, status, stdout=output, stderr="Traceback\nthe reason\n")

    fake(monkeypatch, usable_python="python")
    monkeypatch.setattr(doctor.subprocess, "run", run)
    measured, line = doctor.measure_pace()
    assert bool(measured) == (status == 0)
    assert line.mark == mark and said in line.text
