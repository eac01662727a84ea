"""`python3 course.py bug 17`: make my/bug_17, a stage with a fault in it, for you to find and mend.

The folder is the course with that stage alone: the stage and common/, which is all that a stage needs. So the fault may
lie in either, and everything in the folder runs as it stands.
"""

import os
import shutil
import sys
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

from common.setup.environment import prepare_environment, python_of
from common.stages import stage_folder, stage_folders
from common.terminal import parser_of

from .faults import FAULTS, HEAD, Fault
from .first_failure import CONTRACT, run_tests
from .start import ROOT, expect_free, set_aside

LEFT_OUT = ["*.pyc", "*.png", "results", "work"]


def main(arguments: list[str], root: Path = ROOT) -> int:
    """List the faults, hand one out, help with it, or test a folder; return the exit status."""
    parser = parser_of("course.py bug")
    options = parser.parse_args(arguments)
    if (options.student and options.number) or (options.stage and not options.student):
        parser.error("give a number, or --student NAME, with --stage NN or without")
    if options.student:
        of_stage = [one.number for one in FAULTS if options.stage in (None, one.stage)]
        if not of_stage:
            sys.exit(f"There is no bug of stage {options.stage}: stages are numbered 01 to 08.")
        options.number = of_stage[crc32(options.student.encode()) % len(of_stage)]
    if options.number is None:
        print("\n".join(listing()))
        return 0
    fault = next((one for one in FAULTS if one.number == options.number), None)
    if fault is None:
        sys.exit(f"There is no bug {options.number}: they are numbered 1 to {len(FAULTS)}.")
    folder = root / "my" / f"bug_{fault.number:02}"
    if options.hint:
        print(fault.hints[options.hint - 1])
    elif options.reveal:
        print(story(fault, root))
    elif options.mended:
        return test_folder(fault, root, folder)
    else:
        expect_free(folder, options.force)
        set_aside(folder)
        make(fault, root, folder)
        print(instructions(fault, root, folder))
    return 0


def listing() -> list[str]:
    """Return the lines of the list of all faults."""
    lines = ["bug  stage  difficulty  what a user saw", ""]
    for fault in FAULTS:
        head = f"{fault.number:3}  {fault.stage:5}  {'*' * fault.difficulty:10}  "
        lines.append(textwrap.fill(fault.symptom, 118, initial_indent=head, subsequent_indent=" " * len(head)))
    return [*lines, "", "`python3 course.py bug 17` makes my/bug_17, with that fault in it."]


def python_to_type() -> str:
    """Return the Python that runs things, as a command names it: that of .venv unless there is to be none."""
    return sys.executable if os.environ.get("COURSE_NO_VENV") == "1" else python_of(Path(".venv")).as_posix()


def stage_name(fault: Fault, root: Path) -> str:
    """Return the name of the stage's folder."""
    return stage_folder(fault.stage, root).name


def make(fault: Fault, root: Path, folder: Path) -> None:
    """Make the course with one stage and the fault, and reproduce.py."""
    for part in ("common", stage_name(fault, root)):
        copy(root / part, folder / part, "learn")  # A search for the fault's code must not find its description.
    fault.plant(folder)
    script = folder / "reproduce.py"
    head = HEAD.read_text(encoding="utf-8").format(
        number=fault.number,
        symptom=fault.symptom,
        python=python_to_type(),
        script=os.path.relpath(script, root),
        root=str(root),
        stage=fault.stage,
    )
    script.write_text(head + fault.reproduce.strip() + "\n", encoding="utf-8")


def instructions(fault: Fault, root: Path, folder: Path) -> str:
    """Return what to do with the learner's folder."""
    short, stage, number = folder.relative_to(root).as_posix(), stage_name(fault, root), fault.number
    rows = [
        (f"{python_to_type()} {short}/reproduce.py", "fails as long as the fault is there"),
        (f"python3 course.py bug {number} --hint", "a hint; --hint 2 for another"),
        (f"python3 course.py bug {number} --mended", "run the test for it, and the contract, on your folder"),
        (f"python3 course.py bug {number} --reveal", "where it is, and where it happened"),
    ]
    made = f"Made {short}: the course with {stage} alone. One fault is planted, in {stage} or in common."
    seen = textwrap.fill(f"What a user saw: {fault.symptom}", 118)
    return "\n".join([made, "", seen, "", *(f"    {command:45} {does}" for command, does in rows)])


def story(fault: Fault, root: Path) -> str:
    """Return where the fault is, why it is easy to make, and where it happened."""
    told = textwrap.fill(fault.story, 118)
    return f"{told}\n\nIt happened in {fault.link}.\n\n{fault.diff(root)}\nCaught by: pytest {fault.caught_by}"


# ---- Testing a folder ----


def test_folder(fault: Fault, root: Path, folder: Path) -> int:
    """Run the test for a fault on the learner's folder, and say whether something is still wrong."""
    if not folder.is_dir():
        sys.exit(f"There is no my/{folder.name}: make it with `python3 course.py bug {fault.number}`.")
    python, name = prepare_environment(root), stage_name(fault, root)
    with TemporaryDirectory() as temporary:
        tree = Path(temporary)
        copy_course(root, tree)
        for part in ("common", name):
            copy(folder / part, tree / part)
        ended = run_tests(tree, fault.caught_by.split(), python)
        if ended.status == 0:  # The repair must break nothing else.
            ended = run_tests(tree, [*CONTRACT, "--engine", name], python)
    if ended.status == 0:
        print(f"Mended. `python3 course.py bug {fault.number} --reveal` tells the story.")
        return 0
    said = f"The test: {ended.says[0]}" if ended.status == 1 else f"The test cannot run: {ended.says[-1]}"
    print(f"Something is still wrong. {said}")
    return 1


def copy(source: Path, target: Path, *others: str) -> None:
    """Copy a folder over another, without LEFT_OUT, which no test needs, and without `others`."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*LEFT_OUT, *others), dirs_exist_ok=True)


def copy_course(root: Path, tree: Path) -> None:
    """Copy what tests need: the stages, common, tests, and the settings of pytest."""
    for folder in [*stage_folders(root), root / "common", root / "tests"]:
        copy(folder, tree / folder.name)
    for name in ("course.py", "pyproject.toml"):
        shutil.copy2(root / name, tree / name)
