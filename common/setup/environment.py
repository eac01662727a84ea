"""The environment, .venv: made and filled on the first start, from the package index or from a kit."""

import hashlib
import mmap
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from common.terminal import LOOK_EVERY, StatusLine, note

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ADVICE = "pip failed, for the reason above. Once that is put right, the same command carries on."
SHOWN_LINES = 15  # of pip's output, if it fails


def prepare_environment(root: Path) -> str:
    """Return the Python to run things with, after making .venv and installing into it what is missing.

    .venv/course-stamp names the Python and the requirements that .venv was made for. It exists only while all
    of them are installed: whatever interrupts an installation, the next start takes it up again.
    Exit with a sentence if .venv cannot be made, pip fails, or the kit that COURSE_KIT names is not whole.
    """
    if python := usable_python(root):
        return python
    venv, requirements = root / ".venv", root / "requirements.txt"
    stamp = venv / "course-stamp"
    started = time.monotonic()
    kit = find_kit(Path(os.environ["COURSE_KIT"]), requirements) if os.environ.get("COURSE_KIT") else None
    if not has_pip(python_of(venv)):
        make_venv(venv)
    stamp.unlink(missing_ok=True)
    if kit:
        install_kit(venv, kit)
    else:
        install_requirements(venv, requirements)
    stamp.write_text(" ".join(wanted_stamp(requirements)))
    note(f"Ready after {time.monotonic() - started:.0f} s.")
    return str(python_of(venv))


def usable_python(root: Path) -> str | None:
    """Return the Python to run things with if nothing is to be installed, else None.

    It is that of a .venv with all of requirements.txt, made by this version of Python; with COURSE_NO_VENV=1 this one.
    """
    if os.environ.get("COURSE_NO_VENV") == "1":
        return sys.executable
    python, stamp = python_of(root / ".venv"), root / ".venv" / "course-stamp"
    found = stamp.read_text().split() if stamp.exists() else []
    return str(python) if found == wanted_stamp(root / "requirements.txt") and python.exists() else None


def wanted_stamp(requirements: Path) -> list[str]:
    return [running_python(), digest(requirements)]


def python_of(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def has_pip(python: Path) -> bool:
    """Return False for a .venv that is missing, half made, or of another Python, which may have been removed."""
    if not python.exists():
        return False
    command = [str(python), "-c", "import pip, sys; print(*sys.version_info[:2], sep='.')"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() == running_python()


def make_venv(venv: Path) -> Path:
    """Make an environment that holds pip and nothing else, and return its Python; exit with a sentence on failure."""
    note(f"Making {venv.name}, a Python environment just for this course (a few seconds).")
    command = [sys.executable, "-m", "venv", "--clear", str(venv)]
    result = subprocess.run(command, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode:
        sys.exit(f"{result.stdout}Making {venv.name} failed, for the reason above.")
    return python_of(venv)


def install(venv: Path, *arguments: str, advice: str = ADVICE, environment: Mapping[str, str] | None = None) -> None:
    """Have pip install into .venv. Python compiles a module at its first import; pip would need a minute for all."""
    run_pip([str(python_of(venv)), "-m", "pip", "install", "--no-compile", *arguments], advice, environment)


def install_requirements(venv: Path, requirements: Path) -> None:
    """Install requirements.txt from the package index that pip is set to; exit with a sentence if that fails."""
    note("Installing requirements.txt into .venv: 0.7 GB to download, or several GB where PyTorch comes with CUDA")
    note("(a few minutes the first time, instant afterwards).")
    options = []
    if is_cpu_torch_better():
        note("There is no NVIDIA GPU here: taking the CPU build of PyTorch.")
        options = ["--extra-index-url", TORCH_CPU_INDEX]  # pip prefers its 2.13.0+cpu to 2.13.0
    install(venv, *options, "-r", str(requirements))


def install_kit(venv: Path, kit: Path) -> None:
    """Install exactly what the kit pins, checksums compared: neither an index nor pip's own settings add anything."""
    note(f"Installing {len(list(kit.glob('*.whl')))} files from the kit into .venv, without a network.")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    from_there = ["--no-index", "--no-deps", "--require-hashes", f"--find-links={kit}", "-r", f"{kit}/requirements.txt"]
    advice = f"Copy what is named above to {kit} again, from where the kit was made."
    install(venv, *from_there, advice=advice, environment={**environment, "PIP_CONFIG_FILE": os.devnull})


def run_pip(command: list[str], advice: str, environment: Mapping[str, str] | None = None) -> None:
    """Run pip, and show in one line what it said last. If it fails, exit with its last lines and `advice`."""
    # pip decides by itself which lines a terminal gets; through a pipe they are always the same.
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "errors": "replace"}
    lines, started = [], time.monotonic()
    with subprocess.Popen([*command, *options], env=environment, **pipes) as child, StatusLine() as status:
        read = (line.rstrip() for line in child.stdout if line.strip())
        reader = threading.Thread(target=lambda: [lines.append(line) for line in read], daemon=True)
        reader.start()
        while reader.is_alive():
            reader.join(LOOK_EVERY)
            status.say(time.monotonic() - started, (lines or ["starting pip"])[-1].strip())
    if child.returncode:
        sys.exit("\n".join([*lines[-SHOWN_LINES:], advice]))


def is_cpu_torch_better() -> bool:
    """Return True on Linux without a GPU, where PyPI's torch brings gigabytes of CUDA, if the CPU index answers."""
    if sys.platform != "linux" or shutil.which("nvidia-smi") or os.path.exists("/dev/nvidia0"):
        return False
    return answers(TORCH_CPU_INDEX + "/torch/")


def answers(url: str) -> bool:
    """Return whether a package index can be reached. Any error means no: there is another way to install."""
    try:
        urllib.request.urlopen(url, timeout=4).close()
    except Exception:
        return False
    return True


# ---- A kit, which kit.py gathers ----


def find_kit(kits: Path, requirements: Path) -> Path:
    """Return the folder of this machine's kit; exit with a sentence if there is none, or none for these requirements.

    Its requirements.txt pins every wheel in it by a checksum, below a line with the digest of the course's own.
    """
    folder = kits / f"{running_platform()}-python{running_python()}"
    pinned = folder / "requirements.txt"
    make_one = f"`python3 course.py kit --out FOLDER --platform {running_platform()} --python {running_python()}`"
    if not pinned.exists():
        there = ", ".join(sorted(path.parent.name for path in kits.glob("*/requirements.txt"))) or "none"
        sys.exit(f"{kits} holds no kit named {folder.name}; it holds {there}. {make_one} makes one.")
    if digest(requirements) not in pinned.read_text(encoding="utf-8").partition("\n")[0]:
        sys.exit(f"{folder} was made for another requirements.txt. {make_one} makes one for this.")
    return folder


def running_platform() -> str:
    """Return this machine as "linux-x86_64", "macos-arm64" or "windows-amd64"."""
    system = {"Darwin": "macos"}.get(platform.system(), platform.system().lower())
    return f"{system}-{platform.machine().lower()}"


def running_python() -> str:
    """Return the version of the Python that runs this, as "3.12"."""
    return "{}.{}".format(*sys.version_info[:2])


def digest(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal, without reading gigabytes of it into memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return hashlib.sha256(content).hexdigest()
