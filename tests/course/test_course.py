"""course.py, the door: what a learner types first has to work, or to say in a sentence what is wrong."""

import ast
import os
import runpy
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import course
from common.learn.blank import blank_stage
from common.learn.solve import main as solve
from common.learn.start import main as start_stage
from tests.helpers.incomplete_stages import copy_door

STAGES = {
    "01_naive/README.md": "# 01: recompute everything\n\nWhy it is slow.\n",
    "01_naive/main.py": "import sys\nprint('naive', *sys.argv[1:])\n",
    "01_naive/engine.py": "class Engine:\n    def step(self):\n        return 1\n",
    "02_kv_cache/README.md": "# 02: remember keys and values\n",
    "02_kv_cache/main.py": "import sys\nprint('cached', *sys.argv[1:])\n",
    "02_kv_cache/engine.py": "class Engine:\n    def step(self):\n        return 2\n",
    "02_kv_cache/cache.py": '"""NEW in 02: what is kept."""\n\nKEYS = []\nVALUES = []\n',
    "02_kv_cache/benchmark.py": "print('measured')\n",
    "02_kv_cache/results/plot.py": "print('not a lesson')\n",
    "10_unfinished/README.md": "# a folder without engine.py is no stage\n",
    "requirements.txt": "torch==2.13.0  # pinned\nnumpy\n",
}


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A course of two stages, with course.py at its root."""
    write_files(tmp_path, STAGES)
    return copy_door(tmp_path)


def start(tree: Path, *arguments: str, **options) -> subprocess.Popen:
    """Start course.py as a learner does, but on the Python that runs the tests."""
    environment = {**os.environ, "COURSE_NO_VENV": "1"}
    command = [sys.executable, str(tree / "course.py"), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes, **options)


def finish(tree: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(tree, *arguments)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


@pytest.mark.parametrize("wanted", ["2", "02", "02_kv_cache/", "./02_kv_cache", "my/2", "my/02_kv_cache/", "mine"])
def test_a_stage_goes_by_number_or_folder_and_a_learners_by_its_path(tree, wanted):
    write_files(tree, {"my/02_kv_cache/engine.py": "", "mine/engine.py": ""})
    folder = {"mine": "mine", "my": "my/02_kv_cache"}.get(wanted.partition("/")[0], "02_kv_cache")
    assert course.pick_stage(wanted, tree).resolve() == (tree / folder).resolve()
    for unknown in ("0", "3", "10", "cache", "02_kv", "..", ""):
        with pytest.raises(SystemExit, match=f"^Unknown stage '{unknown}'. Use 01_naive, 02_kv_cache.$"):
            course.pick_stage(unknown, tree)


def test_a_learners_own_stage_runs_beside_common_and_not_the_reference(tree):
    code = "import os, sys\nprint(os.environ['COURSE_STAGE'], os.environ['PYTHONPATH'], *sys.argv[1:])\n"
    write_files(tree, {"my/02_kv_cache/main.py": code, "my/02_kv_cache/engine.py": ""})
    folder = tree / "my" / "02_kv_cache"
    expected = f"{folder} {folder.parent}{os.pathsep}{tree} --demo --x\n"
    assert finish(tree, "demo", "my/02", "--x") == (0, expected, "")
    assert finish(tree, "demo", "my/01")[2] == "Unknown stage 'my/01'. Use 01_naive, 02_kv_cache.\n"


def test_the_door_alone_says_what_comes_next(tree, capsys):
    """From the learner's newest folder: the first milestone that lacks a task, or the next lesson."""
    for name in ("01_naive", "02_kv_cache"):
        shutil.rmtree(tree / name)
        shutil.copytree(course.ROOT / name, tree / name)

    def said() -> str:
        assert course.main([], tree) == 0
        return capsys.readouterr().out

    assert "01_naive/README.md" in said() and len(said().splitlines()) < 10
    start_stage(["02_kv_cache"], tree)
    for tasks, answer in (
        ([], "You are at 02, milestone 1 of "),
        (["KVCache.nbytes", "KVCache.attend"], "You are at 02, milestone 4 of "),
        (["--all"], "All of 02 is written"),
    ):
        for task in tasks:
            solve(["02_kv_cache", task, "--yes"], tree)
        capsys.readouterr()
        assert answer in (text := said()) and "python3 course.py check 02" in text


@pytest.mark.parametrize("arguments", [["help"], ["--help"]])
def test_help_lists_the_commands_and_the_stages_with_their_titles(tree, capsys, arguments):
    assert course.main(arguments, tree) == 0
    output = capsys.readouterr().out
    assert all(f"\n  {command}" in output for command in course.VERBS)
    assert "01_naive      01: recompute everything\n" in output
    assert "02_kv_cache   02: remember keys and values\n" in output
    assert "10_unfinished" not in output


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["dmeo"], f"Unknown command 'dmeo'. Use {', '.join(course.VERBS)}."),
        (["serve"], "`serve` needs a stage: one of 01_naive, 02_kv_cache."),
        (["diff", "--plain"], "`diff` needs a stage: one of 01_naive, 02_kv_cache."),
        (["bench", "01"], "There is nothing to run: no benchmark.py was found."),
        (["bench", "mine"], "mine has no stage's name: its benchmark would measure the reference. Rename it."),
        (["diff", "mine"], "mine has no stage's number, so it is not clear which stage comes before it."),
        (["diff", "1", "2"], "`diff` takes one stage, and was given 2 as well."),
    ],
)
def test_a_wrong_command_line_is_answered_in_a_sentence(tree, arguments, answer):
    write_files(tree, {"mine/engine.py": ""})
    status, _, errors = finish(tree, *arguments)
    assert (status, errors) == (1, answer + "\n")


def test_a_folder_that_cannot_be_written_is_named_in_a_sentence(tree):
    for folder in ("common/learn", "01_naive", "02_kv_cache"):
        shutil.copytree(course.ROOT / folder, tree / folder, dirs_exist_ok=True)
    (tree / "my").touch()
    status, _, errors = finish(tree, "start", "2")
    assert status == 1 and errors.startswith("error: ") and str(tree / "my") in errors and "Traceback" not in errors


def test_old_pythons_are_turned_away_in_a_sentence(monkeypatch):
    ast.parse(Path(course.__file__).read_text(encoding="utf-8"), feature_version=(3, 6))
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    with pytest.raises(SystemExit, match="needs Python 3.10 or newer, and this is 3.8"):
        runpy.run_path(course.__file__)


def test_demo_runs_every_stage_under_its_heading_up_to_the_first_that_fails(tree):
    status, output, _ = finish(tree, "demo", "--device", "cpu")
    lines = output.split("\n")
    assert status == 0
    assert lines[1].startswith("==== 01_naive: 01: recompute everything ====")
    assert lines[2] == "naive --demo --device cpu"
    assert lines[4].startswith("==== 02_kv_cache: 02: remember keys and values ====")
    assert lines[5] == "cached --demo --device cpu"
    (tree / "01_naive/main.py").write_text("raise SystemExit(7)\n")
    status, output, errors = finish(tree, "demo")
    assert status == 7 and "cached" not in output
    assert errors == "01_naive/main.py failed with exit status 7. Not run: 02_kv_cache.\n"


def test_a_program_gets_the_remaining_arguments(tree, tmp_path_factory):
    assert finish(tree, "demo", "2", "--device", "cpu") == (0, "cached --demo --device cpu\n", "")
    assert finish(tree, "serve", "01", "--port", "9000") == (0, "naive --serve --port 9000\n", "")
    assert finish(tree, "bench", "2")[1] == "measured\n"


def test_a_program_runs_where_the_user_is(tree, tmp_path_factory):
    """There are the files that its arguments name: a model's folder, results to compare, a page to be written."""
    code = "import os, sys\nprint(os.getcwd(), *sys.argv[1:])\n"
    write_files(tree, {f"common/{name}/__main__.py": code for name in ("bench", "bench/compare", "inspector")})
    write_files(tree, {"02_kv_cache/main.py": code, "02_kv_cache/benchmark.py": code})
    elsewhere = tmp_path_factory.mktemp("class")
    for arguments, passed in (
        (["compare", "anna.json"], "anna.json"),
        (["watch", "2", "03"], "02_kv_cache 03"),
        (["serve", "2", "--model", "./folder"], "--serve --model ./folder"),
        (["bench", "2", "--out", "here"], "--out here"),
        (["bench", "--out", "here"], "--out here"),
    ):
        printed, _ = start(tree, *arguments, cwd=elsewhere).communicate(timeout=120)
        assert printed == f"{elsewhere} {passed}\n"


@pytest.mark.skipif(not hasattr(select, "poll"), reason="Windows cannot tell that a reader has ended")
def test_a_reader_that_ends_early_is_no_failure(tree):
    """As in `course.py demo | head`: nothing more is started, and nothing is said."""
    (tree / "01_naive/main.py").write_text(
        "import time\nprint(1, flush=True)\ntime.sleep(0.5)\nprint('more ' * 99999)\n"
    )
    process = start(tree, "demo", "1")
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == course.READER_GONE
    assert "failed with exit status" not in errors


@pytest.mark.parametrize("arguments", ["help", "check {stage}"])
def test_every_command_ends_quietly_when_its_reader_does(tmp_path, arguments):
    """Also where a process of the environment prints, as of `check`."""
    stage = tmp_path / "05_paged_attention"
    write_files(stage, blank_stage(*course.stage_folders(course.ROOT)[3:5]))
    process = start(course.ROOT, *arguments.format(stage=stage).split())
    process.stdout.close()
    assert (process.stderr.read(), process.wait(timeout=120)) == ("", course.READER_GONE)


OPTIONS = {
    "demo": "--max-running", "serve": "--port", "watch": "--record FILE", "bench": "--only", "predict": "--sizes",
    "compare": "--out DIR", "diff": "It has no options", "start": "--complete", "check": "--exercise N",
    "solve": "--all", "bug": "--mended", "test": "my/05 -k abort", "doctor": "It has no options", "kit": "--platform",
    "judge": "--itl-ms", "book": "--out DIR", "grade": "--key KEY",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("verb", course.VERBS)
def test_every_verb_tells_what_it_does_and_its_own_options(verb, monkeypatch, capsys):
    """Programs run in this process, which has imported what takes them seconds."""

    def run(command, root, environment=None):
        is_module = command[1] == "-m"
        name, *arguments = command[1 + is_module :]
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        (runpy.run_module if is_module else runpy.run_path)(name, run_name="__main__")

    monkeypatch.setattr(course, "run", run)
    monkeypatch.setenv("COURSE_NO_VENV", "1")
    monkeypatch.chdir(course.ROOT)
    try:
        status = course.main([verb, "--help"])
    except SystemExit as end:
        status = end.code
    output, errors = capsys.readouterr()
    assert (status or 0, errors) == (0, "") and output.startswith(f"usage: python3 course.py {verb}")
    assert OPTIONS[verb] in output and ("stage 08" in output) == (verb in ("demo", "serve", "watch", "predict"))
    assert "usage: main.py" not in output and "--prompt TEXT" not in output


def test_options_of_what_is_not_installed_yet_install_nothing(tree):
    environment = {name: value for name, value in os.environ.items() if name != "COURSE_NO_VENV"}
    command = [sys.executable, str(tree / "course.py"), "watch", "--help"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert "See its engine at work" in shown.stdout and "installs what it needs" in shown.stdout
    assert not (tree / ".venv").exists()


def test_a_stage_is_tested_alone(tree, monkeypatch, capfd):
    """Its own tests and the contract, without processes under Ray, on a learner's folder too; paths go to pytest."""
    tests = ["tests/stages/test_01_02_both.py", "tests/stages/test_02_caches.py", "tests/stages/test_03_later.py"]
    write_files(tree, dict.fromkeys(tests, ""))
    monkeypatch.setattr(course, "prepare_environment", lambda root: "python")

    def run(command, root, environment=None):
        print(*command, (environment or {}).get("COURSE_STAGE"), flush=True)
        return 5

    monkeypatch.setattr(course, "run", run)
    write_files(tree, {"my/02_kv_cache/engine.py": ""})
    for wanted, name, own in (("02", "02_kv_cache", None), ("my/2", "my/02_kv_cache", tree / "my" / "02_kv_cache")):
        assert course.main(["test", wanted, "-x"], tree) == 5
        chosen = f"{tests[0]} {tests[1]} tests/test_contract.py tests/test_contract_claims.py --engine {name} -x"
        output, errors = capfd.readouterr()
        assert output == f"python -m pytest -q -m not ray {chosen} {own}\n"
        assert f"Covered on {name}: {tests[0]}, {tests[1]}, the contract." in errors
    course.main(["test", f"{tests[0]}::test_one"], tree)
    assert capfd.readouterr().out == f"python -m pytest -q {tests[0]}::test_one None\n"


@pytest.mark.skipif(os.name == "nt", reason="POSIX process groups")
def test_control_c_waits_for_the_child_and_ends_with_130(tree):
    (tree / "01_naive/main.py").write_text(
        "import time\n"
        "try: print('serving', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: time.sleep(0.6); print('shut down in order', flush=True)\n"
    )
    process = start(tree, "serve", "1", start_new_session=True)
    assert process.stdout.readline() == "serving\n"
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (130, "shut down in order\n", "")


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_stopped_door_stops_its_server(tree):
    (tree / "01_naive/main.py").write_text("import time\nprint('serving', flush=True)\ntime.sleep(60)\n")
    process = start(tree, "serve", "1")
    assert process.stdout.readline() == "serving\n"
    process.terminate()
    process.communicate(timeout=120)  # ends only once the child has closed its end of the pipe
    assert process.returncode == 128 + signal.SIGTERM


def test_diff_compares_stages_and_a_learners_own_and_needs_nothing_but_python(tree):
    shutil.copytree(course.ROOT / "common" / "learn", tree / "common" / "learn")
    write_files(tree, {"my/02_kv_cache/main.py": "", "my/02_kv_cache/engine.py": "class Engine:\n    mine = 1\n"})

    def diff(stage: str) -> str:
        command = [sys.executable, "-S", str(tree / "course.py"), "diff", stage]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0 and not (tree / ".venv").exists()
        return result.stdout

    mine, reference = diff("my/02"), diff("2")
    assert "01_naive -> 02_kv_cache" in mine and "+    mine = 1" in mine
    assert "\nnew file: cache.py, 2 lines\n" in reference and "\n-        return 1\n+        return 2\n" in reference
    assert "  changed: 4 lines (+2 -2)\n  new: 2 lines (cache.py, 2)\n" in reference
    assert "01_naive is the first stage" in diff("1")


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert course.paint("+line", "32") == "+line"
    monkeypatch.setattr(course.sys.stdout, "isatty", lambda: True, raising=False)
    assert course.paint("+line", "32") == "\033[32m+line\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert course.paint("+line", "32") == "+line"
