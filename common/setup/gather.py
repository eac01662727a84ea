"""Gather a kit: `python3 course.py kit --out FOLDER`, on a machine with a network.

With --platform and --python the kit is for another machine than this. Wheels alone are taken: what would have to be
compiled on that machine is refused by pip.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from common.terminal import note

from .environment import TORCH_CPU_INDEX, answers, make_venv, python_of, run_pip, torch_requirement
from .kit import digest, kit_folder, running_platform, running_python

ROOT = Path(__file__).resolve().parents[2]
HELP_PIP = Path(__file__).with_name("pip_for_another.py")
ADVICE = "pip failed, for the reason above, and no kit was written."
# A wheel for glibc 2.N runs wherever glibc is 2.N or newer; torch asks for 2.28.
LINUX_TAGS = [*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), *"manylinux2014 manylinux2010 linux".split()]
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
MACOS = {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"}
WINDOWS = {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"}
PLATFORMS = {  # name: the tags of the wheels that run there, what the markers in requirements say there
    "linux-x86_64": ([f"{tag}_x86_64" for tag in LINUX_TAGS], LINUX | {"platform_machine": "x86_64"}),
    "linux-aarch64": ([f"{tag}_aarch64" for tag in LINUX_TAGS], LINUX | {"platform_machine": "aarch64"}),
    "macos-arm64": (["macosx_14_0_arm64"], MACOS | {"platform_machine": "arm64"}),  # and older ones: pip adds them
    "windows-amd64": (["win_amd64"], WINDOWS | {"platform_machine": "AMD64"}),
}
COMMANDS = ("export COURSE_KIT=FOLDER", "python3 course.py demo")
WINDOWS_COMMANDS = ("set COURSE_KIT=FOLDER", "py course.py demo")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def main(arguments: list[str], root: Path = ROOT) -> int:
    args = build_parser().parse_args(arguments)
    if args.platform not in PLATFORMS:
        sys.exit(f"There is no kit for {args.platform}. Use --platform with one of {', '.join(PLATFORMS)}.")
    folder = kit_folder(args.out, args.platform, args.python)
    gather(folder, args.platform, args.python, root / "requirements.txt", args.cuda)
    files = list(folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in files) / 1e6
    note(f"{folder}: {len(files)} files, {size:,.0f} MB. On a machine with {args.platform} and Python {args.python}:")
    for command in WINDOWS_COMMANDS if args.platform.startswith("windows") else COMMANDS:
        note(f"  {command}")
    note(f"FOLDER is the copy of {args.out.name} there.")
    return 0


def build_parser() -> argparse.ArgumentParser:
    about = "Gather all wheels, for machines without a network."
    parser = argparse.ArgumentParser(prog="course.py kit", description=about)
    add, here = parser.add_argument, running_platform()
    add("--out", type=Path, required=True, metavar="FOLDER", help="may hold kits for other machines too")
    machines = f"{', '.join(PLATFORMS)} (default: this one, {here})"
    add("--platform", default=here, help=f"for which machine: {machines}")
    add("--python", choices=PYTHONS, default=running_python(), help="for which Python (default: %(default)s)")
    add("--cuda", action="store_true", help="on Linux, take PyTorch with CUDA: several GB more")
    return parser


def gather(folder: Path, platform: str, python: str, requirements: Path, cuda: bool) -> None:
    """Download all wheels into `folder` and write kit.json there. What was in the folder before is replaced."""
    tags, markers = PLATFORMS[platform]
    markers = markers | dict(python_version=python, python_full_version=f"{python}.0", implementation_name="cpython")
    options = [f"--platform={tag}" for tag in tags]
    options += [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:", "-r", str(requirements)]
    if platform.startswith("linux") and not cuda and torch_requirement(requirements):
        if answers(TORCH_CPU_INDEX + "/torch/"):
            options += ["--extra-index-url", TORCH_CPU_INDEX]
        else:
            note(f"{TORCH_CPU_INDEX} does not answer: taking PyTorch from pip's own index, maybe with CUDA.")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        venv = Path(temporary) / "venv"
        make_venv(venv)
        command = [str(python_of(venv)), str(HELP_PIP), json.dumps(markers), "download", "--dest", str(partial)]
        note(f"Gathering wheels for {platform} and Python {python}.")
        run_pip([*command, *options], ADVICE)
    files = {path.name: digest(path) for path in sorted(partial.glob("*.whl"))}
    kit = {"platform": platform, "python": python, "requirements": digest(requirements), "files": files}
    (partial / "kit.json").write_text(json.dumps(kit, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
