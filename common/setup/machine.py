"""What this machine has and what other programs take of it, in numbers; None where that is not known.

psutil knows most of it on every system, and is there once .venv is. Linux says how much a container may use.
"""

import os
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

try:
    import psutil
except ImportError:  # nothing is installed yet
    psutil = None

BROWSERS = ("chromium", "chromium-browser", "google-chrome")  # that pictures and the tests of pages drive
CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return cores that this process may run on: fewer than the machine's inside a container or under taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_quota() -> float | None:
    """Return how many cores' time a container may use; None without a limit."""
    quota, period = (read(CGROUP / "cpu.max").split() + ["max", "max"])[:2]
    return None if quota == "max" else int(quota) / int(period)


def free_memory() -> int | None:
    """Return the bytes that a program can have without others being swapped out."""
    if psutil is None:
        return None
    free, limit = psutil.virtual_memory().available, read(CGROUP / "memory.max").strip() or "max"
    return free if limit == "max" else min(free, int(limit))


def busy_cores(seconds: float = 0.5) -> tuple[float, list[str]] | None:
    """Watch for `seconds`: how many cores were busy, and the programs that took 0.2 cores or more, busiest first."""
    if psutil is None:
        return None
    others = [one for one in psutil.process_iter() if one.pid != os.getpid()]

    def shares() -> Iterator[tuple[str, float]]:
        """Yield name and cores of each, since this was last asked."""
        for one in others:
            with suppress(psutil.Error):  # it has ended, or is another user's
                yield one.name(), one.cpu_percent() / 100

    list(shares())
    busy, taken = psutil.cpu_percent(seconds) / 100 * psutil.cpu_count(), Counter()
    for name, share in shares():
        taken[name] += share
    return busy, [name for name, share in taken.most_common() if share >= 0.2]


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
    """Return a file's text, or nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
