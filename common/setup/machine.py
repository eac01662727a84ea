"""What this machine has and what other programs take of it."""

import os
import shutil
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path

try:
    import psutil
except ImportError:
    psutil = None  # It comes with .venv.

BROWSERS = ("chromium", "chromium-browser", "google-chrome")  # Pictures and the tests of pages use them.
CGROUP = Path("/sys/fs/cgroup")  # where Linux says how much a container may use


def usable_cores() -> int:
    """Return cores that this process may run on: fewer than the machine's inside a container or under taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_quota() -> float | None:
    """Return how many cores' time a container may use; None without a limit."""
    quota, period = (limit("cpu.max") or "max max").split()
    return None if quota == "max" else int(quota) / int(period)


def free_memory() -> int:
    """Return the bytes that a program can have without others being swapped out."""
    free, most = psutil.virtual_memory().available, limit("memory.max") or "max"
    return free if most == "max" else min(free, int(most))


def limit(name: str) -> str:
    with suppress(OSError):
        return (CGROUP / name).read_text().strip()
    return ""


def busy_cores() -> tuple[float, list[str]]:
    """Watch half a second: how many cores were busy, and which programs took 0.2 cores or more, busiest first."""
    list(psutil.process_iter(["cpu_percent"]))  # The next call counts from this one.
    busy, shares = psutil.cpu_percent(0.5) / 100 * psutil.cpu_count(), Counter()
    for one in psutil.process_iter(["name", "cpu_percent"]):
        if one.pid != os.getpid():
            shares[one.info["name"]] += (one.info["cpu_percent"] or 0) / 100
    return busy, [name for name, share in shares.most_common() if share >= 0.2]


def said_by(*command: str) -> str | None:
    """Return what a program prints, or None where it is missing, fails, or takes longer than 10 s."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def browser() -> str | None:
    """Return the path of the Chromium that tests and pictures drive; None without one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)
