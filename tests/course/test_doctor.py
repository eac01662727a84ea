"""Doctor: every check is one line, which says what to do where something is missing."""

import ast
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

import course
from common.setup import doctor, machine
from common.setup.doctor import NEEDED, OK, OPTIONAL

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
    """Through the door, in a course without .venv."""
    shutil.copytree(course.ROOT / "common/setup", tmp_path / "common/setup")
    for name in ("stages.py", "errors.py", "terminal.py"):
        shutil.copy(course.ROOT / "common" / name, tmp_path / "common")
    shutil.copy(course.__file__, tmp_path)
    (tmp_path / "requirements.txt").write_text("torch\n")
    command = [sys.executable, str(tmp_path / "course.py"), "doctor"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = result.stdout.splitlines()
    marks = [line[:2] for line in lines[: lines.index("")]]
    assert set(marks) <= {OK, OPTIONAL, NEEDED} and len(marks) >= 11, result.stdout + result.stderr
    assert result.returncode == (1 if NEEDED in marks else 0)


def test_what_sets_up_needs_nothing_installed():
    """All but what runs as pip."""
    for module in {*doctor.ROOT.glob("common/setup/*.py")} - {doctor.ROOT / "common/setup/pip_for_another.py"}:
        imports = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
        names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in imports if isinstance(node, ast.ImportFrom) and node.level == 0}
        foreign = {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
        assert not foreign - {"common.stages", "common.terminal", "psutil"}, (module, foreign)


@pytest.mark.parametrize(
    ("free", "mark", "said"),
    [(8 * GB, OK, "8.0 GB free"), (GB, NEEDED, "1.0 GB free: close programs"), (None, OK, "knows once .venv is there")],
)
def test_memory(monkeypatch, free, mark, said):
    fake(monkeypatch, free_memory=free)
    line = doctor.memory()
    assert line.mark == mark and said in line.text


@pytest.mark.parametrize(
    ("quota", "threads", "mark", "said"),
    [
        (None, "", OK, "4"),
        (4.0, "4", OK, "4"),
        (1.5, "1", OK, "1"),
        (1.5, "", OPTIONAL, "there would be 4 threads that wait for each other: set OMP_NUM_THREADS=1."),
        (None, "2", OPTIONAL, "4, and OMP_NUM_THREADS=2: unset it"),
    ],
)
def test_cores(monkeypatch, quota, threads, mark, said):
    fake(monkeypatch, usable_cores=4, core_quota=quota)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    line = doctor.cores()
    assert line.mark == mark and said in line.text


def test_busy_programs_are_named(monkeypatch):
    fake(monkeypatch, busy_cores=(1.5, ["chrome", "python"]))
    assert doctor.others().mark == OPTIONAL and "1.5 cores are busy (chrome, python)" in doctor.others().text
    fake(monkeypatch, busy_cores=(0.1, []))
    assert doctor.others().mark == OK


def test_busy_programs_are_those_that_work_meanwhile(monkeypatch):
    programs = [(7, "idle", 10), (8, "one", 30), (9, "two", 25), (10, "two", 25), (11, "other's", None)]
    said = [
        SimpleNamespace(pid=pid, info={"name": name, "cpu_percent": percent})
        for pid, name, percent in [*programs, (os.getpid(), "me", 100)]
    ]
    monkeypatch.setattr(machine.psutil, "process_iter", lambda facts: said)
    monkeypatch.setattr(machine.psutil, "cpu_percent", lambda seconds: 45.0)
    monkeypatch.setattr(machine.psutil, "cpu_count", lambda: 4)
    assert machine.busy_cores() == (1.8, ["two", "one"])
    monkeypatch.setattr(machine, "psutil", None)
    assert machine.busy_cores() is machine.free_memory() is None and "once .venv is there" in doctor.others().text


def test_what_a_container_may_use_is_read_from_its_limits(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GB))
    assert (machine.core_quota(), machine.free_memory()) == (None, 8 * GB)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert (machine.core_quota(), machine.free_memory()) == (None, 8 * GB)
    (tmp_path / "memory.max").write_text("4000000000\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert (machine.core_quota(), machine.free_memory()) == (1.5, 4 * GB)


def test_a_taken_port_is_answered_with_a_free_one(monkeypatch):
    with doctor.socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(doctor, "PORT", taken.getsockname()[1])
        line = doctor.port()
    assert line.mark == OPTIONAL and "taken by another program: start servers with --port" in line.text
    assert doctor.port().mark == OK


@pytest.mark.parametrize(
    ("answers", "installed", "kit", "mark"),
    [(True, None, "", OK), (False, "python", "", OK), (False, None, "/kits", OK), (False, None, "", NEEDED)],
)
def test_a_network_is_needed_only_to_install(monkeypatch, answers, installed, kit, mark):
    fake(monkeypatch, answers=answers, usable_python=installed, said_by=None)
    monkeypatch.setenv("COURSE_KIT", kit)
    assert doctor.network().mark == mark


def test_the_index_that_is_asked_is_the_one_that_pip_asks(monkeypatch):
    asked = []
    fake(monkeypatch, said_by="https://mirror.example/simple")
    monkeypatch.setattr(doctor, "answers", asked.append)
    doctor.network()
    monkeypatch.setenv("PIP_INDEX_URL", "https://other.example/simple/")
    doctor.network()
    assert asked == ["https://mirror.example/simple/pip/", "https://other.example/simple/pip/"]


def test_a_kit_for_another_machine_is_reported(monkeypatch, tmp_path):
    fake(monkeypatch, is_ready=False)
    monkeypatch.setenv("COURSE_KIT", str(tmp_path))
    line = doctor.environment()
    assert line.mark == NEEDED and "holds no kit named" in line.text


@pytest.mark.parametrize(("gpu", "mark"), [(None, OPTIONAL), ("H100, 580.1, 80 GB", NEEDED)])
def test_a_missing_compiler_matters_on_a_gpu(monkeypatch, gpu, mark):
    fake(monkeypatch, find_gpu=gpu)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert doctor.compiler().mark == mark


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


@pytest.mark.parametrize("screen", [False, True])
@pytest.mark.parametrize("name", [None, *machine.BROWSERS])
def test_a_browser_is_found_where_the_tests_of_pages_find_it(monkeypatch, name, screen):
    def get():
        if not screen:
            raise doctor.webbrowser.Error

    monkeypatch.setattr(doctor.webbrowser, "get", get)
    monkeypatch.setattr(shutil, "which", lambda wanted: f"/usr/bin/{wanted}" if wanted == name else None)
    line = doctor.browser()
    assert line.mark == (OK if name or screen else OPTIONAL) and (f"/usr/bin/{name}" in line.text) == bool(name)
    assert ("from another machine" in line.text) == (not screen)
