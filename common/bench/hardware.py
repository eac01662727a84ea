"""On what a figure was measured: it is written beside every figure, and into the name of its file."""

import datetime
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from common.setup.machine import said_by, usable_cores
from common.stages import ROOT


def hardware(device: torch.device) -> dict[str, Any]:
    """Return machine, versions, commit and date as JSON values, without host name and paths: results are published.

    The variable COURSE_COMMIT names the commit of a copy that has other history, or none.
    """
    copied = os.environ.get("COURSE_COMMIT", "")[:10]
    changes = "" if copied else git("status", "--porcelain", "--", ".", ":(exclude,glob)**/results/**")
    facts: dict[str, Any] = {
        "device": device.type,
        "cpu": cpu_name(),
        "cpu_cores": usable_cores(),
        "ram_gib": ram_gib(),
        "gpu": None,
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "torch_threads": torch.get_num_threads(),
        "commit": copied or git("rev-parse", "--short=10", "HEAD") or None,
        "uncommitted_changes": bool(changes),
        "date": datetime.date.today().isoformat(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["gpu"] = properties.name
        facts["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        facts["cuda"] = torch.version.cuda
    return facts


def slug(facts: dict[str, Any]) -> str:
    """Return a file name for `hardware`: "nvidia-h200", or "cpu-amd-epyc-2-cores"."""
    if facts["gpu"]:
        return slugify(facts["gpu"])
    cores = facts["cpu_cores"]
    return slugify(f"cpu {facts['cpu']} {cores} {'core' if cores == 1 else 'cores'}")


def slugify(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def cpu_name() -> str:
    """Return the processor's name without what vendors add to it, such as "(R)" and "@ 2.20GHz"."""
    return re.sub(r"\((R|TM)\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*", "", raw_cpu_name()).strip() or "unknown"


def raw_cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():  # Linux; on ARM it has no line "model name".
        named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        return named[1] if named else platform.machine()
    if platform.system() == "Darwin":
        return said_by("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return platform.processor()


def ram_gib() -> float | None:
    if not hasattr(os, "sysconf"):
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def git(*arguments: str) -> str | None:
    return said_by("git", "-C", str(ROOT), *arguments)
