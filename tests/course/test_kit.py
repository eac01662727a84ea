"""A kit is gathered from an index and installed without one: with real pip, and wheels of a few lines."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import course
from common.setup import gather, kit

UNREACHABLE = "http://127.0.0.1:9"  # port 9 discards; where nothing listens, a connection is refused at once


def write_wheel(folder: Path, name: str, requires: tuple[str, ...] = (), tag: str = "py3-none-any") -> None:
    """Write a wheel of version 1.0 whose module says its own name."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": f"NAME = {name!r}\n",
        f"{info}/METADATA": "\n".join(
            [
                "Metadata-Version: 2.1",
                f"Name: {name}",
                "Version: 1.0",
                *(f"Requires-Dist: {one}" for one in requires),
                "",
            ]
        ),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as wheel:
        record = []
        for path, text in files.items():
            wheel.writestr(path, text)
            checksum = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={checksum},{len(text)}")
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder of wheels, which is all that pip finds; and pip is this environment's, since a new one takes seconds."""
    monkeypatch.setattr(gather, "make_venv", lambda venv: None)
    monkeypatch.setattr(gather, "python_of", lambda venv: Path(sys.executable))
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, "alpha", ('beta; sys_platform == "win32"', 'gamma; python_version < "3.11"', "delta"))
    write_wheel(folder, "beta")
    write_wheel(folder, "gamma")
    write_wheel(folder, "delta", tag="cp312-cp312-win_amd64")
    write_wheel(folder, "delta", tag="cp310-cp310-manylinux_2_17_x86_64")
    write_wheel(folder, "delta", tag="cp310-abi3-macosx_11_0_arm64")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


@pytest.fixture
def requirements(tmp_path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text('alpha\nepsilon; sys_platform == "plan9"\n')
    return path


@pytest.mark.parametrize(
    ("platform", "python", "expected"),
    [
        ("windows-amd64", "3.12", {"alpha", "beta", "delta-1.0-cp312"}),
        ("linux-x86_64", "3.10", {"alpha", "gamma", "delta-1.0-cp310-cp310-manylinux"}),
        ("macos-arm64", "3.13", {"alpha", "delta-1.0-cp310-abi3-macosx"}),
    ],
)
def test_a_kit_holds_what_that_machine_needs(index, requirements, tmp_path, platform, python, expected):
    """By itself pip reads conditions such as `sys_platform == "win32"` for the machine that it runs on."""
    folder = tmp_path / "kit"
    gather.gather(folder, platform, python, requirements, cuda=False)
    names = {path.name for path in folder.glob("*.whl")}
    assert len(names) == len(expected)
    assert all(any(name.startswith(start) for name in names) for start in expected), names
    assert json.loads((folder / "kit.json").read_text())["files"] == {name: kit.digest(folder / name) for name in names}


def test_a_kit_that_cannot_be_whole_is_not_written(index, requirements, tmp_path):
    folder = tmp_path / "kit"
    with pytest.raises(SystemExit, match="(?s)delta.*no kit was written"):
        gather.gather(folder, "linux-x86_64", "3.13", requirements, cuda=False)
    assert not folder.exists()


def test_an_unknown_platform_is_answered_with_those_that_exist(tmp_path):
    with pytest.raises(SystemExit, match="There is no kit for plan9-mips. Use --platform with one of linux-x86_64, "):
        gather.main(["--out", str(tmp_path), "--platform", "plan9-mips", "--python", "3.12"])


def test_a_course_is_set_up_from_its_kit_while_no_index_can_be_reached(index, tmp_path, monkeypatch):
    """As a learner does it, through the door; once more after one file has been damaged."""
    tree, kits = tmp_path / "course", tmp_path / "kits"
    shutil.copytree(course.ROOT / "common" / "setup", tree / "common" / "setup")
    shutil.copy(course.__file__, tree)
    for name in ("stages.py", "errors.py", "terminal.py"):
        shutil.copy(course.ROOT / "common" / name, tree / "common")
    (tree / "requirements.txt").write_text("beta\ngamma\n")
    (tree / "01_only").mkdir()
    (tree / "01_only/engine.py").touch()
    (tree / "01_only/main.py").write_text("import beta, gamma\nprint(beta.NAME, gamma.NAME)\n")
    folder = kit.kit_folder(kits, kit.running_platform(), kit.running_python())
    gather.gather(folder, next(iter(gather.PLATFORMS)), kit.running_python(), tree / "requirements.txt", cuda=False)

    shutil.rmtree(index)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "COURSE_NO_VENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", UNREACHABLE)
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, UNREACHABLE)
    command = [sys.executable, str(tree / "course.py"), "demo"]
    without = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert without.returncode == 1 and "pip failed, for the reason above" in without.stderr
    monkeypatch.setenv("COURSE_KIT", str(kits))
    [damaged] = folder.glob("gamma*")
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + b"!")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1 and f"{damaged.name} is damaged" in refused.stderr
    damaged.write_bytes(whole)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "beta gamma\n"), done.stderr
