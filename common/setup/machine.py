"""What this machine has and what other programs take of it, in numbers; None where the system does not say.

Linux says all of it, in /proc and /sys/fs/cgroup. macOS and Windows say only a part to Python's standard library.
"""

import os
import shutil
import socket
import subprocess
import time
from collections import defaultdict
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")  # that pictures and the tests of pages drive
CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def usable_cores() -> int:
    """Return cores that this process may run on: fewer than the machine's inside a container or under taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_quota() -> float | None:
    """Return how many cores' time a container may use; None without a limit."""
    quota, period = (read(CGROUP / "cpu.max").split() + ["max", "max"])[:2]
    return None if quota == "max" else int(quota) / int(period)


def free_memory() -> int | None:
    """Return the bytes that a program can have without others being swapped out."""
    available = next((line.split()[1] for line in read(PROC / "meminfo").splitlines() if "MemAvailable" in line), None)
    if available is None:
        return None
    limit = read(CGROUP / "memory.max").strip() or "max"
    free = int(available) * 1024
    return free if limit == "max" else min(free, int(limit))


def busy_cores(seconds: float = 0.5) -> tuple[float, list[str]] | None:
    """Watch for `seconds`: how many cores were busy, and the programs that took 0.2 cores or more, busiest first.

    Where only the load average is known, no program is named.
    """
    before = busy_ticks()
    if before is None:
        return (os.getloadavg()[0], []) if hasattr(os, "getloadavg") else None
    start, programs_before = time.monotonic(), program_ticks()
    time.sleep(seconds)
    worked, programs = busy_ticks() - before, program_ticks()
    ticks = os.sysconf("SC_CLK_TCK") * (time.monotonic() - start)
    shares = defaultdict(float)
    for pid, (name, now) in programs.items():
        if pid != os.getpid():
            shares[name] += (now - programs_before.get(pid, (name, 0))[1]) / ticks
    named = sorted((name for name, share in shares.items() if share >= 0.2), key=lambda name: -shares[name])
    return worked / ticks, named


def busy_ticks() -> int | None:
    """Return the clock ticks in which cores worked, for this machine's programs or for its host's other guests."""
    numbers = [int(word) for word in read(PROC / "stat").partition("\n")[0].split()[1:9]]
    if len(numbers) < 8:
        return None
    idle, waiting_for_disk = numbers[3:5]
    return sum(numbers) - idle - waiting_for_disk


def program_ticks() -> dict[int, tuple[str, int]]:
    """Return name and clock ticks of every process, by its id."""
    found = {}
    for path in PROC.glob("[0-9]*/stat"):
        before, _, after = read(path).rpartition(")")  # a name may hold spaces and parentheses
        if after:
            fields = after.split()
            found[int(path.parent.name)] = (before.partition("(")[2], int(fields[11]) + int(fields[12]))
    return found


def is_port_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name != "nt")
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def browser() -> str | None:
    """Return the path of the Chromium that tests and pictures drive; None without one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def said_by(*command: str) -> str | None:
    """Return what a program prints, or None where it is missing, fails, or takes longer than 10 s."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def read(path: Path) -> str:
    """Return a file's text, or nothing where there is none or it has just gone."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
