"""The environment: made once, taken up again after a failure, and filled from a kit without asking any index."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from common.setup import environment, kit
from tests.helpers.incomplete_stages import copy_entry_point

UNREACHABLE = "http://127.0.0.1:9"  # Usually nothing listens at the discard port, so a connection is refused at once.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requirements.txt").write_text("torch==2.13.0  # pinned\n")
    return tmp_path


@pytest.fixture
def venv(monkeypatch) -> Mock:
    """Stands for the programs that setup runs: venv, which makes a folder, and a Python with pip, which has a version.

    returncode: of venv, and what it says instead of a version.
    """
    answers = Mock(returncode=0, stdout=f"{environment.running_python()}\n")

    def run(command, **options):
        if "venv" in command and not answers.returncode:
            answers.made()
            python = environment.python_of(Path(command[-1]))
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
        return answers

    monkeypatch.delenv("COURSE_NO_VENV", raising=False)
    monkeypatch.delenv("COURSE_KIT", raising=False)
    monkeypatch.setattr(environment.subprocess, "run", run)
    monkeypatch.setattr(environment, "is_cpu_torch_better", lambda: True)
    return answers


@pytest.fixture
def pip(monkeypatch) -> Mock:
    monkeypatch.setattr(environment, "run_pip", pip := Mock())
    return pip


def test_a_failed_install_or_update_leaves_nothing_that_looks_finished_and_a_whole_one_stays(root, venv, pip):
    requirements = root / "requirements.txt"
    whole = requirements.read_text()
    for text in (whole, "numpy>=99\n"):
        requirements.write_text(text)
        pip.side_effect = SystemExit
        with pytest.raises(SystemExit):
            environment.prepare_environment(root)
        requirements.write_text(whole)
        pip.reset_mock(side_effect=True)
        for _ in range(2):  # The second time nothing is left to install.
            assert environment.prepare_environment(root) == str(environment.python_of(root / ".venv"))
        words = pip.call_args.args[0]
        assert pip.call_count == venv.made.call_count == 1 and words[-2:] == ["-r", str(requirements)]
        assert environment.TORCH_CPU_INDEX in words


def test_an_environment_half_made_or_of_another_python_is_made_again(root, venv, pip):
    (root / ".venv/bin").mkdir(parents=True)
    environment.prepare_environment(root)
    (root / ".venv/course-stamp").unlink()
    venv.stdout = "3.9"
    environment.prepare_environment(root)
    assert (venv.made.call_count, pip.call_count) == (2, 2)


def test_a_python_without_venv_says_what_to_install(root, venv):
    venv.returncode, venv.stdout = 1, "ensurepip is not available: apt install python3.11-venv\n"  # as on Debian
    with pytest.raises(SystemExit, match="(?s)apt install python3.*Making .venv failed, for the reason above"):
        environment.prepare_environment(root)


# ---- Kits: with real pip, and wheels of a few lines ----


def write_wheel(folder: Path, name: str, requires: tuple[str, ...] = (), tag: str = "py3-none-any") -> None:
    """Write a wheel of version 1.0 whose module says its own name."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": f"NAME = {name!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = f"{info}/RECORD"
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as wheel:
        for path, text in (files | {record: "".join(f"{path},,\n" for path in [*files, record])}).items():
            wheel.writestr(path, text)


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder of wheels, which is all that pip finds; and pip is this environment's, since a new one takes seconds."""
    monkeypatch.setattr(kit, "make_venv", lambda venv: Path(sys.executable))
    monkeypatch.setattr(kit, "answers", lambda url: False)
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, "alpha", ('beta; sys_platform == "win32"', 'gamma; python_version < "3.11"', "delta"))
    write_wheel(folder, "beta")
    write_wheel(folder, "gamma")
    for tag in ("cp312-cp312-win_amd64", "cp310-cp310-manylinux_2_17_x86_64", "cp310-abi3-macosx_11_0_arm64"):
        write_wheel(folder, "delta", tag=tag)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


@pytest.mark.parametrize(
    ("platform", "python", "expected"),
    [
        ("windows-amd64", "3.12", {"alpha", "beta", "delta-1.0-cp312"}),
        ("linux-x86_64", "3.10", {"alpha", "gamma", "delta-1.0-cp310-cp310-manylinux"}),
        ("macos-arm64", "3.13", {"alpha", "delta-1.0-cp310-abi3-macosx"}),
        ("linux-x86_64", "3.13", None),  # delta has no wheel for it.
    ],
)
def test_a_kit_holds_what_that_machine_needs_or_is_not_written(index, tmp_path, platform, python, expected):
    """By itself pip reads conditions such as `sys_platform == "win32"` for the machine that it runs on."""
    folder, requirements = tmp_path / "kit", tmp_path / "requirements.txt"
    requirements.write_text('alpha\nepsilon; sys_platform == "plan9"\n')
    if expected is None:
        with pytest.raises(SystemExit, match="(?s)delta.*no kit was written"):
            kit.gather(folder, platform, python, requirements, cuda=False)
        assert not folder.exists()
        return
    kit.gather(folder, platform, python, requirements, cuda=False)
    names = {path.name for path in folder.glob("*.whl")}
    assert len(names) == len(expected)
    assert all(any(name.startswith(start) for name in names) for start in expected), names


def test_a_course_is_set_up_from_its_kit_while_no_index_can_be_reached(index, tmp_path, monkeypatch):
    """As a learner does it, through the door: with others' kits, a damaged one, and a whole one."""
    tree, kits = copy_entry_point(tmp_path / "course"), tmp_path / "kits"
    (tree / "requirements.txt").write_text("beta\ngamma\n")
    (tree / "01_only").mkdir()
    (tree / "01_only/engine.py").touch()
    (tree / "01_only/main.py").write_text("import beta, gamma\nprint(beta.NAME, gamma.NAME)\n")
    here, python = environment.running_platform(), environment.running_python()
    folder = kits / f"{here}-python{python}"
    kit.gather(folder, next(iter(kit.PLATFORMS)), python, tree / "requirements.txt", cuda=False)
    (folder / "unlisted-1.0-py3-none-any.whl").write_bytes(b"that no requirements.txt names")

    def demo() -> tuple[str, str]:
        command = [sys.executable, str(tree / "course.py"), "demo"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == (0 if result.stdout else 1), result.stderr
        return result.stdout, result.stderr

    shutil.rmtree(index)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "COURSE_NO_VENV"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PIP_INDEX_URL", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, UNREACHABLE)
    monkeypatch.setenv("COURSE_KIT", str(kits))
    folder.rename(kits / "plan9-mips-python3.12")
    assert f"no kit named {folder.name}; it holds plan9-mips-python3.12. `python3 course.py kit --out" in demo()[1]
    (kits / "plan9-mips-python3.12").rename(folder)
    [damaged] = folder.glob("gamma*")
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + b"!")
    refused = demo()[1]
    assert damaged.name in refused and f"Copy what is named above to {folder} again" in refused
    damaged.write_bytes(whole)
    assert demo()[0] == "beta gamma\n"
    (tree / "requirements.txt").write_text("beta\n")
    assert f"{folder} was made for another requirements.txt." in demo()[1]
