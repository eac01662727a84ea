"""An LLM inference server, built in eight stages.

usage: python3 course.py COMMAND [STAGE] [more arguments are passed on]

  demo  [STAGE]   watch one stage work, or every stage in turn
  serve STAGE     start a stage's HTTP server
  watch STAGE     see its engine at work, in a browser; with two stages, side by side
  bench [STAGE]   measure a stage against the one before it, or every stage in turn, and all at once
  diff  STAGE     read what a stage changed in the one before it; needs nothing but Python
  test            run the tests; arguments go to pytest

A stage is named by its number or its folder: 2, 02 and 02_kv_cache are the same.

Every command but diff first makes .venv and installs requirements.txt into it: some minutes the
first time, nothing after that. With COURSE_NO_VENV=1 they use the Python that runs course.py as it is.
"""

# All of this parses on Python 3.8, where check_python then says what is missing: a SyntaxError would not.
from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SHOWN_LAST = ["engine.py", "server.py", "main.py"]  # by a diff: they build on the files that are new
MODULES = {"test": ["pytest", "-q"], "watch": ["common.inspector"]}
ASIDE = {"demo.py", "benchmark.py"}  # they show and measure the lesson, and are not part of it


def find_stages(root: Path) -> list[Path]:
    """The stage folders, in order. A folder is a stage once it has a main.py."""
    return sorted(main.parent for main in root.glob("[0-9][0-9]_*/main.py"))


def pick_stage(stages: list[Path], wanted: str) -> Path:
    """The stage meant by "2", "02", "02_kv_cache" or, as a shell completes it, "02_kv_cache/"."""
    name = Path(wanted).name
    for stage in stages:
        if name == stage.name or (name.isdecimal() and int(name) == int(stage.name[:2])):
            return stage
    sys.exit(f"There is no stage {wanted!r}; there is {list_names(stages)}.")


def list_names(stages: list[Path]) -> str:
    return ", ".join(stage.name for stage in stages) or "none"


def title(stage: Path) -> str:
    """The first heading of a stage's README, or else the first line of a docstring."""
    docstring = r'^"""(.+?)(?:"""|$)'
    for name, pattern in (("README.md", r"^#+ +(.+)"), ("main.py", docstring), ("benchmark.py", docstring)):
        text = (stage / name).read_text(encoding="utf-8") if (stage / name).exists() else ""
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            return found[1].strip()
    return ""


def show_help(stages: list[Path]) -> None:
    print(__doc__)
    width = max((len(stage.name) for stage in stages), default=0)
    for stage in stages:
        print(f"  {stage.name:{width}}   {title(stage)}")


# ---- The environment: .venv, made and filled on the first start ----


def check_python() -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 (ruff assumes what is checked here)
        running = "{}.{}".format(*sys.version_info[:2])
        sys.exit(f"The course needs Python 3.10 or newer, and this is {running}: run it with a newer one.")


def prepare_environment(root: Path) -> str:
    """Return the Python to run things with, after making .venv and installing into it what is missing.

    .venv/course-stamp names the Python and the requirements that .venv was made for. It exists only while all
    of them are installed: whatever interrupts an installation, the next start takes it up again.
    """
    if os.environ.get("COURSE_NO_VENV") == "1":
        return sys.executable
    venv = root / ".venv"
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = venv / "course-stamp"
    version = "{}.{}".format(*sys.version_info[:2])
    wanted = [version, hashlib.sha256((root / "requirements.txt").read_bytes()).hexdigest()]
    found = stamp.read_text().split() if stamp.exists() else []
    if found == wanted and python.exists():
        return str(python)

    started = time.monotonic()
    if found[:1] not in ([], [version]) or not has_pip(python):  # made by another Python, or not to its end
        make_venv(venv)
    stamp.unlink(missing_ok=True)
    install_requirements(python, root / "requirements.txt")
    stamp.write_text(" ".join(wanted))
    note(f"Ready after {time.monotonic() - started:.0f} s.")
    return str(python)


def has_pip(python: Path) -> bool:
    """False for a .venv that is missing, half made, or whose own Python has been removed."""
    command = [str(python), "-m", "pip", "--version"]
    return python.exists() and subprocess.run(command, capture_output=True).returncode == 0


def make_venv(venv: Path) -> None:
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        sys.exit("This Python has no venv module: on Debian or Ubuntu, `apt install python3-venv` adds it.")
    note("Making .venv, a Python environment for the course alone: some seconds.")
    setup_step([sys.executable, "-m", "venv", "--clear", str(venv)], "Making .venv failed, for the reason above.")


def install_requirements(python: Path, requirements: Path) -> None:
    note("Installing requirements.txt into .venv: a few minutes and 0.6 GB the first time, several GB with CUDA.")
    advice = "pip failed, for the reason above. Once that is put right, the same command carries on."
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *quiet]
    torch = re.search(r"^torch\b[^#\n]*", requirements.read_text(encoding="utf-8"), re.MULTILINE)
    if torch and is_cpu_torch_better():
        # The CPU build of a version satisfies requirements.txt too: the second call leaves it alone.
        note("There is no NVIDIA GPU here: taking the CPU build of PyTorch.")
        setup_step([*pip, "--extra-index-url", TORCH_CPU_INDEX, torch[0].strip()], advice)
    setup_step([*pip, "-r", str(requirements)], advice)


def is_cpu_torch_better() -> bool:
    """True on Linux without a GPU, where PyPI's torch brings gigabytes of CUDA, if the CPU index answers."""
    if sys.platform != "linux" or shutil.which("nvidia-smi") or os.path.exists("/dev/nvidia0"):
        return False
    try:
        urllib.request.urlopen(TORCH_CPU_INDEX + "/torch/", timeout=4).close()
    except Exception:  # whatever is in the way: PyPI's build works as well, it is only larger
        return False
    return True


def setup_step(command: list[str], advice: str) -> None:
    """Run one command of the setup. A terminal shows all it prints, a log only the end of it if it fails."""
    piped = {} if sys.stdout.isatty() else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    result = subprocess.run(command, text=True, errors="replace", **piped)
    if result.returncode:
        last_lines = (result.stdout or "").splitlines()[-15:]
        sys.exit("\n".join([*last_lines, advice]))


def note(text: str) -> None:
    """Print to stderr, so that stdout holds only what the demos and benchmarks print."""
    print(text, file=sys.stderr, flush=True)


# ---- Running things ----


def run(command: list[str], root: Path) -> int:
    """Run a command to its end and return its exit status.

    Ctrl-C in a terminal reaches the child as well. It gets all the time it needs to shut down; only then does
    KeyboardInterrupt go on to the caller.
    """
    child = subprocess.Popen(command, cwd=str(root))
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())  # a server must not outlive its door
    interrupted = False
    while child.returncode is None:
        try:
            child.wait()
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    return child.returncode if child.returncode >= 0 else 128 - child.returncode  # a signal, as shells count


def run_stages(stages: list[Path], script: str, arguments: list[str], root: Path) -> int:
    """Run the same script of each stage in turn, up to the first that fails."""
    if not stages:
        sys.exit(f"There is nothing to run: no {script} was found.")
    python = prepare_environment(root)
    for index, stage in enumerate(stages):
        if len(stages) > 1:
            print(paint(f"\n==== {stage.name}: {title(stage)} ".ljust(100, "="), "1"), flush=True)
        path = (stage / script).relative_to(root).as_posix()
        status = run([python, path, *arguments], root)
        if status:
            not_run = f" Not run: {list_names(stages[index + 1 :])}." if len(stages) > 1 else ""
            note(f"{path} failed with exit status {status}.{not_run}")
            return status
    return 0


def paint(text: str, colour: str) -> str:
    """Wrap text in a terminal's colour code, unless there is no terminal or NO_COLOR asks for none."""
    plain = not colour or not sys.stdout.isatty() or os.environ.get("NO_COLOR")
    return text if plain else f"\033[{colour}m{text}\033[0m"


# ---- The diff ----


def diff_stages(before: Path, after: Path) -> list[str]:
    """What changed from one stage to the next, line by line.

    Lines of code begin with "+", "-" or " ", the hunks they come in with "@@", headings with none of these.
    """
    old, new = read_sources(before), read_sources(after)
    lines, created, gone, added, removed = [f"{before.name} -> {after.name}"], [], [], 0, 0
    for name in [*sorted({*old, *new} - {*SHOWN_LAST} - ASIDE), *SHOWN_LAST]:
        was, now = old.get(name, []), new.get(name, [])
        if name in new and name not in old:
            created.append(f"{name}, {len(now)} lines")
            lines += ["", f"new file: {created[-1]}", *("+" + line for line in now)]
        elif name in old and name not in new:
            gone.append(f"{name}, {len(was)} lines")
        elif was != now:
            hunks = list(difflib.unified_diff(was, now, lineterm=""))[2:]  # the first two repeat the names
            plus, minus = (sum(line.startswith(sign) for line in hunks) for sign in "+-")
            lines += ["", f"{name}: +{plus} -{minus}", *(name_place(line, now) for line in hunks)]
            added, removed = added + plus, removed + minus
    lines += ["", f"{added + removed} changed lines (+{added} -{removed}) in files that existed before."]
    lines += [f"Left out: {' and '.join(sorted(ASIDE))}, which show and measure the lesson."]
    return lines + [f"{what}: {'; '.join(names)}." for what, names in (("New", created), ("Gone", gone)) if names]


def read_sources(stage: Path) -> dict[str, list[str]]:
    """The lines of each Python file of a stage, by its path inside the stage."""
    paths = [path for path in stage.rglob("*.py") if path.parent.name != "results"]
    return {p.relative_to(stage).as_posix(): p.read_text(encoding="utf-8").splitlines() for p in paths}


def name_place(line: str, code: list[str]) -> str:
    """Add to a hunk's "@@ -41,7 +41,9 @@" the function or class that it begins in, as git does."""
    hunk = re.match(r"@@ -\S+ \+(\d+)", line)
    for above in reversed(code[: int(hunk[1]) - 1] if hunk else []):
        if re.match(r"\s*(async def|def|class) ", above):
            return f"{line} {above.strip()}"
    return line


def show_diff(stages: list[Path], stage: Path) -> int:
    if stage == stages[0]:
        print(f"{stage.name} is the first stage: there is none before it to compare it with.")
        return 0
    colours = {"+": "32", "-": "31", "@": "36", " ": ""}
    lines = diff_stages(stages[stages.index(stage) - 1], stage)
    text = "\n".join(paint(line, colours.get(line[:1], "1")) for line in lines) + "\n"
    pager = shlex.split(os.environ.get("PAGER", "less"))
    if sys.stdout.isatty() and pager and shutil.which(pager[0]):
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is one of the pager's own keys
        # F, X: what fits on the screen just stays there; R: colours
        subprocess.run(pager, input=text.encode(), env={"LESS": "FRX", **os.environ})
    else:
        print(text, end="")
    return 0


def main(arguments: list[str], root: Path = ROOT) -> int:
    stages = find_stages(root)
    command, *rest = arguments or ["help"]
    if command in ("help", "-h", "--help") or rest[:1] in (["-h"], ["--help"]):
        show_help(stages)
        return 0
    if command in MODULES:
        return run([prepare_environment(root), "-m", *MODULES[command], *rest], root)
    if command not in ("demo", "serve", "bench", "diff"):
        sys.exit(f"There is no command {command!r}; there is demo, serve, watch, bench, diff and test.")

    chosen = stages
    if rest and not rest[0].startswith("-"):
        chosen, rest = [pick_stage(stages, rest[0])], rest[1:]
    elif command in ("serve", "diff"):
        sys.exit(f"Which stage shall `{command}` take? There is {list_names(stages)}.")

    if command == "diff":
        return show_diff(stages, chosen[0])
    if command == "bench":
        folders = chosen + [root / "common" / "bench"] * (chosen == stages)  # the last one measures all of them at once
        return run_stages([one for one in folders if (one / "benchmark.py").exists()], "benchmark.py", rest, root)
    return run_stages(chosen, "main.py", [f"--{command}", *rest], root)


if __name__ == "__main__":
    check_python()
    sys.stdout.reconfigure(errors="replace")  # a console that lacks a character shows "?" in its place
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
