"""A kit: all wheels that requirements.txt needs, for one platform and one Python: `python3 course.py kit --out FOLDER`.

A folder of kits holds one folder for each of them, such as linux-x86_64-python3.12, whose own requirements.txt
pins each file by its checksum; pip compares them when it installs the kit. pip downloads wheels alone: what would have
to be compiled on that machine is refused.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from common.packages import MODELS, package_table, pip_download
from common.stages import ROOT
from common.terminal import note, parser_of

from .environment import TORCH_CPU_INDEX, answers, digest, make_venv, run_pip, running_platform, running_python

HELP_PIP = Path(__file__).with_name("pip_for_another.py")
ADVICE = "pip failed, for the reason above, and no kit was written."
# A wheel for glibc 2.N runs wherever glibc is 2.N or newer; torch asks for 2.28, llguidance for 2.31.
LINUX_TAGS = [*(f"manylinux_2_{minor}" for minor in range(31, 4, -1)), *"manylinux2014 manylinux2010 linux".split()]
PLATFORMS = {  # name: the tags of the wheels that run there, and the values of MARKERS there
    "linux-x86_64": ([f"{tag}_x86_64" for tag in LINUX_TAGS], "linux Linux posix x86_64"),
    "linux-aarch64": ([f"{tag}_aarch64" for tag in LINUX_TAGS], "linux Linux posix aarch64"),
    "macos-arm64": (["macosx_14_0_arm64"], "darwin Darwin posix arm64"),  # pip adds older versions.
    "windows-amd64": (["win_amd64"], "win32 Windows nt AMD64"),
}
MARKERS = "sys_platform platform_system os_name platform_machine".split()


def main(arguments: list[str], root: Path = ROOT) -> int:
    args = parser_of("course.py kit").parse_args(arguments)
    target, python = args.platform or running_platform(), args.python or running_python()
    if target not in PLATFORMS:
        sys.exit(f"There is no kit for {target}. Use --platform with one of {', '.join(PLATFORMS)}.")
    folder = args.out / f"{target}-python{python}"
    table = package_table() if args.model else {}
    if unknown := [name for name in args.model if name not in table]:
        sys.exit(f"No wheel of {unknown[0]} is known. Use --model with one of {', '.join(table)}.")
    gather(folder, target, python, root / "requirements.txt", args.cuda)
    for model in map(table.get, args.model):
        run_pip(pip_download(sys.executable, model, args.out / MODELS), ADVICE)
        note(f"{args.out / MODELS}: {model['title']}, {model['megabytes']} MB, licence {model['licence']}")
    sizes, windows = [path.stat().st_size for path in folder.glob("*.whl")], target.startswith("windows")
    note(f"{folder}: {len(sizes)} files, {sum(sizes) / 1e6:,.0f} MB. On a {target} with Python {python}:")
    note("  set COURSE_KIT=FOLDER" if windows else "  export COURSE_KIT=FOLDER")
    note(f"  {'py' if windows else 'python3'} course.py demo")
    note(f"FOLDER is the copy of {args.out.name} there.")
    return 0


def gather(folder: Path, target: str, python: str, requirements: Path, cuda: bool) -> None:
    """Download all wheels into `folder` and write their requirements.txt. What was in the folder before is replaced."""
    tags, said = PLATFORMS[target]
    markers = dict(zip(MARKERS, said.split(), strict=True), python_version=python, python_full_version=f"{python}.0")
    options = [f"--platform={tag}" for tag in tags]
    options += [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:", "-r", str(requirements)]
    if target.startswith("linux") and not cuda:
        if answers(TORCH_CPU_INDEX + "/torch/"):
            options += ["--extra-index-url", TORCH_CPU_INDEX]
        else:
            note(f"{TORCH_CPU_INDEX} does not answer: taking PyTorch from pip's own index, maybe with CUDA.")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        own_python = make_venv(Path(temporary) / "venv")
        note(f"Gathering wheels for {target} and Python {python}.")
        download = [str(HELP_PIP), json.dumps(markers), "download", "--dest", str(partial), *options]
        run_pip([str(own_python), *download], ADVICE)
    pinned = [f"# For a requirements.txt with the SHA-256 {digest(requirements)}"]
    for wheel in sorted(partial.glob("*.whl")):
        name, version, *_ = wheel.name.split("-")
        pinned.append(f"{name}=={version} --hash=sha256:{digest(wheel)}")
    (partial / "requirements.txt").write_text("\n".join(pinned) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
