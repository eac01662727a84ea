"""A kit: all wheels that requirements.txt needs, for one platform and one Python, with their checksums.

A folder of kits holds one folder for each of them, such as linux-x86_64-python3.12, and in each of these kit.json lists
the files. `gather` makes a kit; here it is found and checked.
"""

import hashlib
import json
import platform
import sys
from pathlib import Path


def running_python() -> str:
    """Return the version of the Python that runs this, as "3.12"."""
    return "{}.{}".format(*sys.version_info[:2])


def running_platform() -> str:
    """Return this machine as "linux-x86_64", "macos-arm64" or "windows-amd64"."""
    system = {"Darwin": "macos"}.get(platform.system(), platform.system().lower())
    return f"{system}-{platform.machine().lower()}"


def kit_folder(kits: Path, target_platform: str, python: str) -> Path:
    return kits / f"{target_platform}-python{python}"


def digest(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
    return sha256.hexdigest()


def checked_wheels(kits: Path, requirements: Path) -> list[Path]:
    """Return the files of this machine's kit, after comparing every checksum.

    Exit with a sentence if there is no kit for this machine, if it was made for other requirements, or if files are
    missing or damaged; all of these are named.
    """
    folder = kit_folder(kits, running_platform(), running_python())
    make_one = f"`python3 course.py kit --out FOLDER --platform {running_platform()} --python {running_python()}`"
    if not (folder / "kit.json").exists():
        there = ", ".join(sorted(path.parent.name for path in kits.glob("*/kit.json"))) or "none"
        sys.exit(f"{kits} holds no kit named {folder.name}; it holds {there}. {make_one} makes one.")
    kit = json.loads((folder / "kit.json").read_text(encoding="utf-8"))
    if kit["requirements"] != digest(requirements):
        sys.exit(f"{folder} was made for another requirements.txt. {make_one} makes one for this.")
    bad = []
    for name, expected in kit["files"].items():
        path = folder / name
        if not path.exists():
            bad.append(f"{name} is missing.")
        elif digest(path) != expected:
            bad.append(f"{name} is damaged: its SHA-256 is not the one in kit.json.")
    if bad:
        sys.exit("\n".join([*bad, f"Copy what is named above to {folder} again, from where the kit was made."]))
    return [folder / name for name in kit["files"]]
