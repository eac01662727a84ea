"""gpu.ipynb has no output, and runs from its first cell to its last."""

import contextlib
import io
import json
import runpy
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest
import torch

from common import cli
from common.bench import suite
from common.bench.hardware import ROOT
from common.errors import InvalidInput
from tests.helpers.measured_here import shrink_products

CELLS = json.loads((ROOT / "gpu.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
COMPLETE = ["budget-Qwen3-0.6B-256", "budget-Qwen3-0.6B-1", "budget-Qwen3-8B-1"]
REFUSED = ["kernels", "contract", "demo-05", "demo-06", "demo-07", "all", "picture"]


class Here:
    """Stand in for subprocess.Popen: run a command of the course in this process, which has imported what it needs."""

    def __init__(self, command: list[str], **options):
        assert command[0] == sys.executable
        assert options == {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
            patch.setattr(sys, "stderr", output)
            is_module = command[1] == "-m"
            patch.setattr(sys, "argv", command[2 if is_module else 1 :])
            run = runpy.run_module if is_module else runpy.run_path
            try:
                run(sys.argv[0] if is_module else str(ROOT / sys.argv[0]), run_name="__main__")
                self.status = 0
            except SystemExit as ended:  # with a status, or with a sentence
                self.status = ended.code if isinstance(ended.code, int) else print(ended.code) or 1
        self.stdout = io.StringIO(output.getvalue())

    def wait(self) -> int:
        return self.status


def test_the_notebook_is_committed_without_output():
    """What a machine has measured is in its results."""
    assert not any(cell["outputs"] or cell["execution_count"] for cell in CODE) and len(CODE) > 5


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # by runpy: they have been imported, as they should be
def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    """Without a GPU. What takes long is refused, behind its command's own parsing of the options: nothing is measured,
    and no engine is built, so those commands end with 1."""

    def no_engine(*_):
        raise InvalidInput("no engine is built here")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(suite, "run_process", lambda *_: ({}, "nothing is measured here"))
    monkeypatch.setattr(cli, "build_engine", no_engine)
    shrink_products(monkeypatch)
    shown = []
    display = SimpleNamespace(Image=lambda filename: filename.name, display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    course = tmp_path / "course"  # beside the notebook, as where it has cloned it
    (course / "gpu-results").mkdir(parents=True)
    (course / "gpu-results/a.png").touch()
    for name in ("course.py", "requirements.txt"):
        (course / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    first, *others = ("".join(cell["source"]) for cell in CODE)
    names: dict = {}
    exec(first, names)
    names["subprocess"] = SimpleNamespace(**vars(subprocess) | {"Popen": Here})
    for cell in others:
        exec(cell, names)
    assert names["statuses"] == dict.fromkeys(COMPLETE, 0) | dict.fromkeys(REFUSED, 1)
    said = capsys.readouterr().out
    assert said.count("nothing is measured here") >= 4 and said.count("error: no engine is built here") == 3
    assert said.count("[kernels: exit status 1]") == said.count("[budget-Qwen3-8B-1: exit status 0]") == 1
    assert "attention" in said and shown == ["a.png"]
    with zipfile.ZipFile(course / "gpu-results.zip") as archive:
        files = archive.namelist()
        words = archive.read("gpu-results/PULL_REQUEST.md").decode()
        assert b"attention" in archive.read("gpu-results/budget-Qwen3-8B-1.txt")
    assert {f"gpu-results/{name}.txt" for name in names["statuses"]} < set(files)
    assert words.startswith("Results on a CPU") and words.count("| complete |") == 3 < words.count("| exit status 1 |")
