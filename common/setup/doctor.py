"""`python3 course.py doctor`: what this machine lacks, in a sentence each, and how fast it is.

It installs and changes nothing, and needs only Python. Where the environment exists, it times a step of stage 05 there.
The exit status is 1 if something is marked "!!".
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import webbrowser
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from common.packages import kept_file, package_table
from common.process import free_port
from common.stages import ROOT
from common.terminal import note, run_to_end

from . import machine
from .environment import answers, find_kit, running_python, usable_python

OK, OPTIONAL, NEEDED = "ok", "--", "!!"
KNOWN_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
ENVIRONMENT_GB, CUDA_ENVIRONMENT_GB = 3, 10  # on disk: .venv, and what pip unpacks meanwhile
MEMORY_GB = 2
PORT = 8000
PACE_SECONDS = 120  # for `pace` to answer; on a quiet machine it takes 6
INDEX = "https://pypi.org/simple"
COMPILERS = ("g++", "clang++", "c++", "cl")


class Line(NamedTuple):
    mark: str
    text: str


def main(arguments: list[str]) -> int:
    """Print every check as soon as it is made; return the exit status."""
    if arguments:
        sys.exit(f"`doctor` takes no arguments, and was given {' '.join(arguments)}.")
    if (found := usable_python(ROOT)) not in (None, sys.executable):  # That Python has psutil.
        return subprocess.run([found, "-m", __name__], cwd=ROOT).returncode
    has_packages = machine.psutil and find_spec("platformdirs")
    checks = [item for item in CHECKS.items() if has_packages or item[1] not in NEED_PACKAGES]
    marks, pace = [show(name, check()) for name, check in checks], {}
    if usable_python(ROOT):
        pace, line = measure_pace()
        marks.append(show("stage 05", line))
    marks.append(show("GPU", gpu_line(find_gpu(), pace)))
    if not pace:
        print("\nOnce `python3 course.py demo 1` has run, doctor also says how fast this machine is, and what is free.")
    return int(NEEDED in marks)


def show(name: str, line: Line) -> str:
    print(f"{line.mark}  {name:13} {line.text}", flush=True)
    return line.mark


# ---- The checks ----


def python() -> Line:
    if not find_spec("ensurepip"):  # It installs pip into an environment.
        return Line(NEEDED, f"{running_python()} makes no environments: on Debian, `apt install python3-venv`.")
    if running_python() not in KNOWN_PYTHONS:
        tried = ", ".join(KNOWN_PYTHONS)
        return Line(OPTIONAL, f"{running_python()} has not been tried: if installing fails, use one of {tried}.")
    return Line(OK, sys.version.split()[0])


def environment() -> Line:
    if os.environ.get("COURSE_NO_VENV") == "1":
        return Line(OK, "that of this Python, as COURSE_NO_VENV=1 asks")
    if usable_python(ROOT):
        return Line(OK, ".venv holds all of requirements.txt")
    if not os.environ.get("COURSE_KIT"):
        return Line(OPTIONAL, "not there yet: the first `course.py demo` makes it, in a few minutes.")
    try:
        kit = find_kit(Path(os.environ["COURSE_KIT"]), ROOT / "requirements.txt")
    except SystemExit as stop:
        return Line(NEEDED, str(stop))
    return Line(OK, f"a kit of {len([*kit.glob('*.whl')])} files, for the first `course.py demo` to check and install")


def models() -> Line:
    table = package_table()
    missing = {name: model["megabytes"] for name, model in table.items() if not kept_file(model).exists()}
    said = [f"--model {name} fetches {size} MB when it is first used" for name, size in missing.items()]
    return Line(OPTIONAL if missing else OK, "; ".join(said) or f"here: {', '.join(table)}")


def disk() -> Line:
    free = shutil.disk_usage(ROOT).free / 1e9
    needed = 0.5 if usable_python(ROOT) else ENVIRONMENT_GB if find_gpu() is None else CUDA_ENVIRONMENT_GB
    if free < needed:
        return Line(NEEDED, f"{free:.1f} GB free: free {needed} GB, which .venv and the results need.")
    return Line(OK, f"{free:,.0f} GB free")


def memory() -> Line:
    free = machine.free_memory()
    if free < MEMORY_GB * 1e9:
        return Line(NEEDED, f"{free / 1e9:.1f} GB free: close programs until {MEMORY_GB} GB are.")
    return Line(OK, f"{free / 1e9:.1f} GB free")


def cores() -> Line:
    usable, quota = machine.usable_cores(), machine.core_quota()
    best = usable if quota is None else max(1, min(usable, int(quota)))
    threads = os.environ.get("OMP_NUM_THREADS", "")
    used = int(threads) if threads.isdecimal() else usable
    if used == best:
        return Line(OK, str(best))
    if used < best:
        return Line(OPTIONAL, f"{best}, and OMP_NUM_THREADS={threads}: unset it to use all of them.")
    why = f"the time of {best}, and there would be {used} threads that wait for each other"
    return Line(OPTIONAL, f"{why}: set OMP_NUM_THREADS={best}.")


def others() -> Line:
    taken, names = machine.busy_cores()
    if taken >= 0.3:
        who = f" ({', '.join(names[:3])})" if names else ""
        return Line(OPTIONAL, f"{taken:.1f} cores are busy{who}: end that before you measure anything.")
    return Line(OK, f"{taken:.1f} cores are busy")


def port() -> Line:
    with suppress(OSError), socket.create_server(("127.0.0.1", PORT)):
        return Line(OK, f"{PORT} is free")
    return Line(OPTIONAL, f"{PORT} is taken by another program: start servers with --port {free_port()}.")


def network() -> Line:
    set_for_pip = machine.said_by(sys.executable, "-m", "pip", "config", "get", "global.index-url")
    index = os.environ.get("PIP_INDEX_URL") or set_for_pip or INDEX
    if answers(index.rstrip("/") + "/pip/"):
        return Line(OK, "the package index answers")
    if usable_python(ROOT) or os.environ.get("COURSE_KIT"):
        return Line(OK, "the package index does not answer, and nothing is to be installed from it")
    advice = "connect, or set COURSE_KIT to the folder of a kit that `course.py kit --out FOLDER` made elsewhere."
    return Line(NEEDED, f"the package index does not answer: {advice}")


def compiler() -> Line:
    if found := next(filter(shutil.which, COMPILERS), None):
        return Line(OK, found)
    if find_gpu():
        return Line(NEEDED, "none, and Triton needs one on a GPU: on Debian or Ubuntu, `apt install g++`.")
    return Line(OPTIONAL, "none: Triton needs one, but only on a GPU.")


def browser() -> Line:
    found = machine.browser()
    try:
        webbrowser.get()
    except webbrowser.Error:
        elsewhere = f"open pages from another machine, through `ssh -L {PORT}:127.0.0.1:{PORT} THIS_MACHINE`."
        if found:
            return Line(OK, f"{found} for the tests of pages; without a screen here, {elsewhere}")
        return Line(OPTIONAL, f"none here: {elsewhere}")
    return Line(OK, found or "there is one")


CHECKS = {
    "Python": python, "environment": environment, "models": models, "disk": disk, "memory": memory, "cores": cores,
    "in use": others, "port": port, "network": network, "C++ compiler": compiler, "browser": browser,
}  # fmt: skip
NEED_PACKAGES = (models, memory, others)


@cache
def find_gpu() -> str | None:
    """Return name, driver and memory of the NVIDIA GPUs, "" if the driver does not answer, None without a GPU."""
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total"
        return machine.said_by("nvidia-smi", query, "--format=csv,noheader") or ""
    return "" if os.path.exists("/dev/nvidia0") else None


def gpu_line(gpu: str | None, pace: dict) -> Line:
    if gpu is None:
        return Line(OK, "none from NVIDIA: everything runs on the CPU")
    if not gpu:
        return Line(OPTIONAL, "its driver does not answer: repair the driver until `nvidia-smi` lists the GPU.")
    described, cuda = "; ".join(gpu.splitlines()), pace.get("cuda")
    if pace and cuda is None:
        advice = "delete .venv, and the next command installs the one with CUDA."
        return Line(OPTIONAL, f"{described}, and .venv has PyTorch for CPUs: {advice}")
    if pace and pace["device"] != "cuda":
        return Line(OPTIONAL, f"{described}, and this driver is too old for PyTorch's CUDA {cuda}: update it.")
    return Line(OK, described)


def measure_pace() -> tuple[dict, Line]:
    """Return what `pace` finds in the environment, {} if it fails, and the line to print."""
    note("    timing one step of stage 05 (a few seconds) ...")
    command = [usable_python(ROOT), "-m", "common.bench.pace"]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "errors": "replace", "timeout": PACE_SECONDS}
    try:
        result = subprocess.run(command, **options)
    except subprocess.TimeoutExpired:
        return {}, Line(NEEDED, f"was not ready in {PACE_SECONDS} s: end what keeps the cores busy, and try again.")
    if result.returncode:
        return {}, Line(NEEDED, f"does not run: {(result.stderr.splitlines() or ['no reason given'])[-1]}.")
    pace = json.loads(result.stdout.splitlines()[-1])
    return pace, Line(OK, pace["said"])


if __name__ == "__main__":
    run_to_end(lambda: main(sys.argv[1:]))
