"""`python3 course.py doctor`: what this machine lacks, in a sentence each, and what to expect of it.

It installs and changes nothing, and needs only Python. Where the environment exists, it times a step of stage 05 there.
The exit status is 1 if something is marked "!!".
"""

import json
import os
import shutil
import subprocess
import sys
import webbrowser
from functools import cache
from pathlib import Path
from typing import NamedTuple

from common.terminal import note, run_to_end

from . import machine
from .environment import NO_VENV, answers, has_venv_module, is_ready, python_of
from .kit import checked_wheels, running_python

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("recorded.json")  # what `bench/pace.py --record` measured on one machine
OK, OPTIONAL, NEEDED = "ok", "--", "!!"
KNOWN_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
ENVIRONMENT_GB, CUDA_ENVIRONMENT_GB = 3, 10  # of disk: .venv, and what pip unpacks meanwhile
MEMORY_GB = 2
PORT = 8000
PACE_SECONDS = 120  # for pace to answer: a quiet machine takes 6
INDEX = "https://pypi.org/simple"
COMPILING = "compiling kernels"  # what a start says of kernels that it does not find
COMPILERS = ("g++", "clang++", "c++", "cl")


class Line(NamedTuple):
    mark: str
    text: str


def main(arguments: list[str]) -> int:
    """Print every check as soon as it is made, then what to expect; return the exit status."""
    if arguments:
        sys.exit(f"`doctor` takes no arguments, and was given {' '.join(arguments)}.")
    if is_ready(ROOT) and Path(sys.prefix) != ROOT / ".venv":  # where psutil is
        return subprocess.run([str(python_of(ROOT / ".venv")), "-m", __name__], cwd=ROOT).returncode
    marks, pace = [show(name, check()) for name, check in CHECKS.items()], None
    if usable_python():
        pace, line = measure_pace()
        marks.append(show("stage 05", line))
    marks.append(show("GPU", gpu_line(find_gpu(), pace)))
    print()
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    print("\n".join(expectations(pace, recorded)))
    return int(NEEDED in marks)


def show(name: str, line: Line) -> str:
    print(f"{line.mark}  {name:13} {line.text}", flush=True)
    return line.mark


# ---- The checks ----


def python() -> Line:
    if not has_venv_module():
        return Line(NEEDED, f"{running_python()} {NO_VENV}")
    if running_python() not in KNOWN_PYTHONS:
        tried = ", ".join(KNOWN_PYTHONS)
        return Line(OPTIONAL, f"{running_python()} has not been tried: if installing fails, use one of {tried}.")
    return Line(OK, sys.version.split()[0])


def usable_python() -> str | None:
    """Return the Python that the course's commands will use, if what they need is installed already."""
    if os.environ.get("COURSE_NO_VENV") == "1":
        return sys.executable
    return str(python_of(ROOT / ".venv")) if is_ready(ROOT) else None


def environment() -> Line:
    if os.environ.get("COURSE_NO_VENV") == "1":
        return Line(OK, "that of this Python, as COURSE_NO_VENV=1 asks")
    if is_ready(ROOT):
        return Line(OK, ".venv holds all of requirements.txt")
    kit = os.environ.get("COURSE_KIT")
    if not kit:
        return Line(OPTIONAL, "not there yet: the first `course.py demo` makes it, in a few minutes.")
    try:
        wheels = checked_wheels(Path(kit), ROOT / "requirements.txt")
    except SystemExit as stop:
        return Line(NEEDED, " ".join(str(stop).splitlines()))
    return Line(OK, f"a kit of {len(wheels)} files with the right checksums, for the first `course.py demo` to install")


def disk() -> Line:
    free = shutil.disk_usage(ROOT).free / 1e9
    needed = 0.5 if usable_python() else ENVIRONMENT_GB if find_gpu() is None else CUDA_ENVIRONMENT_GB
    if free < needed:
        return Line(NEEDED, f"{free:.1f} GB free: free {needed} GB, which .venv and the results need.")
    return Line(OK, f"{free:,.0f} GB free")


def memory() -> Line:
    free = machine.free_memory()
    if free is None:
        return Line(OK, f"{MEMORY_GB} GB must be free; how much is, doctor knows once .venv is there")
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
    busy = machine.busy_cores()
    if busy is None:
        return Line(OK, "doctor knows how busy this machine is once .venv is there")
    taken, names = busy
    if taken >= 0.3:
        who = f" ({', '.join(names[:3])})" if names else ""
        return Line(OPTIONAL, f"{taken:.1f} cores are busy{who}: end that before you measure anything.")
    return Line(OK, f"{taken:.1f} cores are busy")


def port() -> Line:
    if machine.is_port_free(PORT):
        return Line(OK, f"{PORT} is free")
    other = next((port for port in range(PORT + 1, PORT + 100) if machine.is_port_free(port)), 0)
    return Line(OPTIONAL, f"{PORT} is taken by another program: start servers with --port {other}.")


def network() -> Line:
    set_for_pip = machine.said_by(sys.executable, "-m", "pip", "config", "get", "global.index-url")
    index = os.environ.get("PIP_INDEX_URL") or set_for_pip or INDEX
    if answers(index.rstrip("/") + "/pip/"):
        return Line(OK, "the package index answers")
    if usable_python() or os.environ.get("COURSE_KIT"):
        return Line(OK, "the package index does not answer, and nothing is to be installed from it")
    advice = "connect, or set COURSE_KIT to the folder of a kit that `course.py kit --out FOLDER` made elsewhere."
    return Line(NEEDED, f"the package index does not answer: {advice}")


def compiler() -> Line:
    if found := next((name for name in COMPILERS if shutil.which(name)), None):
        return Line(OK, found)
    if find_gpu():
        return Line(NEEDED, "none, and Triton needs one on a GPU: on Debian or Ubuntu, `apt install g++`.")
    return Line(OPTIONAL, "none, and only the benchmark of kernels needs one, for torch.compile: `apt install g++`.")


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
    "Python": python, "environment": environment, "disk": disk, "memory": memory, "cores": cores, "in use": others,
    "port": port, "network": network, "C++ compiler": compiler, "browser": browser,
}  # fmt: skip


@cache
def find_gpu() -> str | None:
    """Return name, driver and memory of the NVIDIA GPUs, "" if the driver does not answer, None without a GPU."""
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,memory.total"
        return machine.said_by("nvidia-smi", query, "--format=csv,noheader") or ""
    return "" if os.path.exists("/dev/nvidia0") else None


def gpu_line(gpu: str | None, pace: dict | None) -> Line:
    if gpu is None:
        return Line(OK, "none from NVIDIA: everything runs on the CPU")
    if not gpu:
        return Line(OPTIONAL, "its driver does not answer: repair the driver until `nvidia-smi` lists the GPU.")
    described = "; ".join(gpu.splitlines())
    if pace and pace["cuda"] is None:
        advice = "delete .venv, and the next command installs the one with CUDA."
        return Line(OPTIONAL, f"{described}, and .venv has PyTorch for CPUs: {advice}")
    if pace and pace["device"] != "cuda":
        return Line(OPTIONAL, f"{described}, and this driver is too old for PyTorch's CUDA {pace['cuda']}: update it.")
    return Line(OK, described)


# ---- What to expect ----


def measure_pace() -> tuple[dict | None, Line]:
    """Return what `pace` measures in the environment, or None if it fails, and the line that says so.

    It measures again if kernels had to be compiled: no later start waits for that.
    """
    note("    timing one step of stage 05 (a few seconds) ...")
    command = [usable_python(), "-m", "common.bench.pace"]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "errors": "replace", "timeout": PACE_SECONDS}
    try:
        result = first = subprocess.run(command, **options)
        if COMPILING in first.stderr and not first.returncode:
            result = subprocess.run(command, **options)
    except subprocess.TimeoutExpired:
        return None, Line(NEEDED, f"was not ready in {PACE_SECONDS} s: end what keeps the cores busy, and try again.")
    if result.returncode:
        return None, Line(NEEDED, f"does not run: {(result.stderr.splitlines() or ['no reason given'])[-1]}.")
    pace, cold = (json.loads(one.stdout.splitlines()[-1]) for one in (result, first))
    what = f"one step in which {pace['requests']} requests decode: {pace['step_ms']:.1f} ms on {pace['device']}"
    if result is not first:
        seconds = max(0.0, cold["ready_seconds"] - pace["ready_seconds"])
        what += f"; its kernels were not compiled yet, which took {seconds:.0f} s, once on this machine"
    return pace, Line(OK, what)


def expected_seconds(pace: dict, recorded: dict, seconds: dict[str, float]) -> dict[str, float]:
    """Return for recorded times those here: the start as it was measured, the rest as a step stands to a step."""
    ratio = pace["step_ms"] / recorded["step_ms"]
    return {
        name: pace["ready_seconds"] + max(0.0, one - recorded["ready_seconds"]) * ratio for name, one in seconds.items()
    }


def expectations(pace: dict | None, recorded: dict) -> list[str]:
    """Say what to expect, and from what it follows."""
    if pace is None:
        return ["Once `python3 course.py demo 1` has run, doctor also says how fast this machine is."]
    device = pace["device"]
    if device != recorded.get("device"):
        return [f"No times of demos are recorded for {device} that this could be compared with."]
    ratio = pace["step_ms"] / recorded["step_ms"]
    machine_there = f"{recorded['cpu']}, {recorded['cpu_cores']} cores"
    there = f"Where the demos were timed ({machine_there}, {recorded['date']}) that step takes"
    lines = [f"{there} {recorded['step_ms']:.1f} ms: what follows is {ratio:.2f} times as long, beside the start."]
    demos = expected_seconds(pace, recorded, recorded["demo_seconds"])
    lines.append(f"Expect of `demo`: {', '.join(f'{name} in {seconds:.0f} s' for name, seconds in demos.items())}.")
    lines.append(f"Expect of all demos together {sum(demos.values()) / 60:.1f} minutes.")
    return lines


if __name__ == "__main__":
    run_to_end(lambda: main(sys.argv[1:]))
