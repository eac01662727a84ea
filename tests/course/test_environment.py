"""The environment: made once, taken up again after a failure, and filled from a kit without asking any index."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common import terminal
from common.setup import environment, kit

REQUIREMENTS = "torch==2.13.0  # pinned\nnumpy\n"
PYTHON = "Scripts/python.exe" if os.name == "nt" else "bin/python"


class FakeMachine:
    """Stands in for the programs that setup runs: venv makes a folder, pip answers as told; both are counted."""

    def __init__(self) -> None:
        self.venvs_made = 0
        self.installs: list[list[str]] = []
        self.environments: list[dict[str, str] | None] = []
        self.pip_fails = False

    def run(self, command, **options):
        if "venv" in command:
            self.venvs_made += 1
            python = Path(command[-1], PYTHON)
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
        return subprocess.CompletedProcess(command, 0, stdout="")

    def run_pip(self, command, advice, variables=None):
        self.installs.append(command[command.index("--no-compile") + 1 :])
        self.environments.append(variables)
        if self.pip_fails:
            sys.exit(advice)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requirements.txt").write_text(REQUIREMENTS)
    return tmp_path


@pytest.fixture
def machine(monkeypatch) -> FakeMachine:
    fake = FakeMachine()
    monkeypatch.delenv("COURSE_NO_VENV", raising=False)
    monkeypatch.delenv("COURSE_KIT", raising=False)
    monkeypatch.setattr(environment.subprocess, "run", fake.run)
    monkeypatch.setattr(environment, "run_pip", fake.run_pip)
    monkeypatch.setattr(environment, "is_cpu_torch_better", lambda: False)
    return fake


def test_the_environment_is_made_once_and_follows_the_requirements(root, machine):
    python = environment.prepare_environment(root)
    assert Path(python).is_relative_to(root / ".venv")
    assert environment.prepare_environment(root) == python
    assert (machine.venvs_made, len(machine.installs)) == (1, 1)

    (root / "requirements.txt").write_text("numpy>=2\n")
    environment.prepare_environment(root)
    environment.prepare_environment(root)
    assert (machine.venvs_made, len(machine.installs)) == (1, 2)


def test_a_failed_install_is_tried_again(root, machine):
    machine.pip_fails = True
    with pytest.raises(SystemExit, match="pip failed, for the reason above"):
        environment.prepare_environment(root)

    machine.pip_fails = False
    environment.prepare_environment(root)
    environment.prepare_environment(root)
    assert (machine.venvs_made, len(machine.installs)) == (1, 2)


def test_a_failed_update_leaves_nothing_that_looks_finished(root, machine):
    environment.prepare_environment(root)
    (root / "requirements.txt").write_text("numpy>=99\n")
    machine.pip_fails = True
    with pytest.raises(SystemExit):
        environment.prepare_environment(root)
    machine.pip_fails = False
    (root / "requirements.txt").write_text(REQUIREMENTS)
    environment.prepare_environment(root)
    assert len(machine.installs) == 3


def test_an_environment_half_made_or_of_another_python_is_made_again(root, machine):
    (root / ".venv/bin").mkdir(parents=True)
    environment.prepare_environment(root)
    assert (machine.venvs_made, len(machine.installs)) == (1, 1)
    stamp = root / ".venv/course-stamp"
    stamp.write_text(f"3.9 {stamp.read_text().split()[1]}")
    environment.prepare_environment(root)
    assert (machine.venvs_made, len(machine.installs)) == (2, 2)


def test_without_a_gpu_the_cpu_build_of_torch_comes_first(root, machine, monkeypatch):
    monkeypatch.setattr(environment, "is_cpu_torch_better", lambda: True)
    environment.prepare_environment(root)
    torch, everything = machine.installs
    assert torch == ["--extra-index-url", environment.TORCH_CPU_INDEX, "torch==2.13.0"]
    assert everything == ["-r", str(root / "requirements.txt")]


def test_an_index_that_does_not_answer_is_done_without(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError("no route")

    monkeypatch.setattr(environment.urllib.request, "urlopen", refuse)
    assert not environment.is_cpu_torch_better()


def test_a_python_without_venv_says_what_to_install(root, machine, monkeypatch):
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="apt install python3-venv"):
        environment.prepare_environment(root)


def test_course_no_venv_leaves_everything_alone(root, machine, monkeypatch):
    monkeypatch.setenv("COURSE_NO_VENV", "1")
    assert environment.prepare_environment(root) == sys.executable
    assert machine.installs == [] and not (root / ".venv").exists()


def test_compiled_modules_are_kept_in_the_environment(tmp_path, monkeypatch):
    """Also where PYTHONDONTWRITEBYTECODE is set, and then nothing is written beside a source."""
    program = tmp_path / "program.py"
    program.write_text("import imported")
    (tmp_path / "imported.py").touch()
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("COURSE_NO_VENV", raising=False)
    variables = {**os.environ, **environment.variables_of(tmp_path / ".venv")}
    subprocess.run([sys.executable, str(program)], env=variables, check=True)
    assert [path.parent.name for path in (tmp_path / ".venv").rglob("imported*.pyc")] == [tmp_path.name]
    assert not list(tmp_path.glob("__pycache__"))
    monkeypatch.setenv("COURSE_NO_VENV", "1")
    assert environment.variables_of(tmp_path / ".venv") == {}


# ---- From a kit ----


@pytest.fixture
def kits(root: Path) -> Path:
    """A folder of kits with one for this machine: two files that are called wheels."""
    folder = kit.kit_folder(root / "kits", kit.running_platform(), kit.running_python())
    folder.mkdir(parents=True)
    files = {"numpy-2.0-py3-none-any.whl": b"numbers", "torch-2.13.0-py3-none-any.whl": b"tensors" * 1000}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    sums = {name: kit.digest(folder / name) for name in files}
    document = {"requirements": kit.digest(root / "requirements.txt"), "files": sums}
    (folder / "kit.json").write_text(json.dumps(document))
    return root / "kits"


def test_a_kit_is_installed_and_nothing_beside_it(root, machine, kits, monkeypatch):
    monkeypatch.setenv("COURSE_KIT", str(kits))
    monkeypatch.setenv("PIP_FIND_LINKS", "/elsewhere")
    [folder] = kits.iterdir()
    (folder / "unlisted-1.0-py3-none-any.whl").write_bytes(b"not in kit.json")
    environment.prepare_environment(root)
    [install], [variables] = machine.installs, machine.environments
    listed = [str(folder / name) for name in ("numpy-2.0-py3-none-any.whl", "torch-2.13.0-py3-none-any.whl")]
    assert install == ["--no-index", "--no-deps", *listed]
    assert "PIP_FIND_LINKS" not in variables and variables["PIP_CONFIG_FILE"] == os.devnull
    environment.prepare_environment(root)
    assert len(machine.installs) == 1


def test_a_damaged_kit_is_refused_by_the_names_of_its_bad_files(root, machine, kits, monkeypatch):
    monkeypatch.setenv("COURSE_KIT", str(kits))
    [folder] = kits.iterdir()
    (folder / "numpy-2.0-py3-none-any.whl").unlink()
    (folder / "torch-2.13.0-py3-none-any.whl").write_bytes(b"tensorz" + b"tensors" * 999)
    with pytest.raises(SystemExit) as stop:
        environment.prepare_environment(root)
    missing, damaged, advice = stop.value.code.splitlines()
    assert missing == "numpy-2.0-py3-none-any.whl is missing."
    assert damaged.startswith("torch-2.13.0-py3-none-any.whl is damaged")
    assert str(folder) in advice and "numpy" not in damaged
    assert (machine.venvs_made, machine.installs) == (0, [])


def test_a_kit_for_other_machines_says_what_it_holds(root, machine, kits, monkeypatch):
    monkeypatch.setenv("COURSE_KIT", str(kits))
    [folder] = kits.iterdir()
    folder.rename(kits / "plan9-mips-python3.12")
    with pytest.raises(SystemExit, match=f"no kit named {folder.name}; it holds plan9-mips-python3.12. .* makes one"):
        environment.prepare_environment(root)


def test_a_kit_for_other_requirements_is_refused(root, machine, kits, monkeypatch):
    monkeypatch.setenv("COURSE_KIT", str(kits))
    (root / "requirements.txt").write_text("numpy==2.1\n")
    with pytest.raises(SystemExit, match="made for another requirements.txt"):
        environment.prepare_environment(root)


# ---- What is said meanwhile ----

SAID_BY_PIP = [
    ("Looking in indexes: https://example.org/simple", "starting pip"),
    ("Collecting torch==2.13.0 (from -r requirements.txt (line 2))", "choosing versions"),
    ("  Downloading torch-2.13.0-cp312-none-any.whl.metadata (30 kB)", "choosing versions"),
    ("Downloading https://example.org/torch-2.13.0-cp312-none-any.whl (190.2 MB)", "downloading torch (190.2 MB)"),
    ("Saved ./kits/torch-2.13.0-cp312-none-any.whl", "saving torch"),
    ("Installing collected packages: filelock, numpy, torch", "unpacking, which takes about a minute"),
]


def test_what_pip_says_is_told_in_a_line():
    lines = [line for line, _ in SAID_BY_PIP]
    assert [environment.activity(lines[: count + 1]) for count in range(len(lines))] == [
        told for _, told in SAID_BY_PIP
    ]


def test_a_failing_pip_shows_its_last_lines_and_the_advice():
    program = "for i in range(40): print('line', i)\nraise SystemExit('ERROR: no space left')"
    with pytest.raises(SystemExit) as stop:
        environment.run_pip([sys.executable, "-c", program], "What to do.")
    *before, reason, advice = stop.value.code.splitlines()
    assert (reason, advice) == ("ERROR: no space left", "What to do.")
    assert "line 39" in before and "line 20" not in before


def test_a_log_gets_a_line_for_each_activity_and_now_and_then(capsys):
    with terminal.StatusLine() as status:
        for seconds, text in enumerate(["starting pip", "choosing 1", "downloading", "choosing 2"]):
            status.say(seconds, text)
        status.say(17, "choosing 3")
    assert capsys.readouterr().err.split("\n") == [
        "    0 s   starting pip",
        "    1 s   choosing 1",
        "    2 s   downloading",
        "   17 s   choosing 3",
        "",
    ]
