"""gpu.ipynb has no output, runs from its first cell to its last, and its commands exist and parse."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import torch

from common.bench import run as command_line
from common.bench.gpu.__main__ import run
from common.bench.gpu.tests import files_with_marked
from common.stages import ROOT

CELLS = json.loads((ROOT / "gpu.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_the_notebook_is_committed_without_output():
    """What a machine has measured is in its results."""
    assert not any(cell["outputs"] or cell["execution_count"] for cell in CODE) and len(CODE) > 5


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    """Its commands are only parsed: those of the GPU by their own parser, which then measures nothing."""
    parsed, course = [], tmp_path / "course"  # beside the notebook, where it clones the course
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(command_line, "measure", lambda args, settings: parsed.append(args) or 0)

    def started(command, **options):
        assert command[0] == sys.executable
        gpu_command = command[1:3] == ["-m", "common.bench.gpu"]
        status = run(command[3:]) if gpu_command else int(not (ROOT / command[1]).exists())
        return SimpleNamespace(stdout=["said\n"], wait=lambda: status)

    def ran(command, **options):
        commands.append(command)
        return SimpleNamespace(stdout="")

    shown, commands = [], []
    display = SimpleNamespace(Image=lambda filename: filename.name, display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    (course / "gpu-results").mkdir(parents=True)
    (course / "gpu-results/a.png").touch()
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed/b.png").touch()
    shutil.make_archive(str(course / "gpu-results/results"), "zip", tmp_path / "packed")
    for name in ("course.py", "requirements.txt"):
        (course / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    first, *others = ("".join(cell["source"]) for cell in CODE)
    names = {}
    exec(first, names)
    names["subprocess"] = SimpleNamespace(**vars(subprocess) | {"Popen": started, "run": ran})
    for cell in others:
        exec(cell, names)
    imported = [re.findall(r'^pytest\.importorskip\("(\w+)', path.read_text(), re.M) for path in files_with_marked()]
    assert {*sum(imported, [])} <= names["wanted"], "without it pytest leaves a whole file out"
    assert {re.split("[<>=]", package)[0] for package in commands[0][5:]} == names["wanted"]
    assert set(names["statuses"].values()) == {0} and shown == ["a.png", "b.png"]
    assert [args.only for args in parsed] == ["tests", "smoke", "budget", "budget", None]
    assert {args.sizes for args in parsed} == {"gpu"}
    assert "[demo-07: exit status 0]" in capsys.readouterr().out
    with zipfile.ZipFile(course / "gpu-results.zip") as archive:
        assert {f"gpu-results/{name}.txt" for name in names["statuses"]} < set(archive.namelist())
        words = archive.read("gpu-results/PULL_REQUEST.md").decode()
    assert words.startswith("Results on NVIDIA H200") and words.count("| complete |") == len(names["statuses"])
