"""course.py, the door: what a learner types first has to work, or to say in a sentence what is wrong."""

import ast
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import course
from common.learn.solve import main as solve
from common.learn.start import main as start_stage
from tests.helpers.incomplete_stages import copy_entry_point

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
    return copy_entry_point(tmp_path)


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


def test_a_learners_own_stage_runs_beside_common_and_not_the_reference(tree):
    code = "import os, sys\nprint(os.environ['COURSE_STAGE'], os.environ['PYTHONPATH'], *sys.argv[1:])\n"
    write_files(tree, {"my/02_kv_cache/main.py": code, "my/02_kv_cache/engine.py": ""})
    folder = tree / "my" / "02_kv_cache"
    expected = f"{folder} {folder.parent}{os.pathsep}{tree} --demo --x\n"
    assert finish(tree, "demo", "my/02", "--x") == (0, expected, "")
    for unknown in ("my/01", "0", "10", "cache", ".."):
        with pytest.raises(SystemExit, match=f"^Unknown stage '{unknown}'. Use 01_naive, 02_kv_cache.$"):
            course.main(["demo", unknown], tree)


def test_the_door_alone_says_what_comes_next(root, capsys):
    """From the learner's newest folder: the first milestone that lacks a task, or the next lesson."""

    def said() -> str:
        capsys.readouterr()
        assert course.main([], root) == 0
        return capsys.readouterr().out

    assert "01_naive/README.md" in said()
    start_stage(["02_kv_cache"], root)
    assert "You are at 02, milestone 1 of " in said()
    solve(["02_kv_cache", "KVCache.nbytes", "--yes"], root)
    assert "You are at 02, milestone 2 of " in said()
    solve(["02_kv_cache", "--all", "--yes"], root)
    assert "All of 02 is written" in said() and "03_streaming/README.md" in said()


def test_help_lists_the_commands_and_the_stages_with_their_titles(tree, capsys):
    assert course.main(["help"], tree) == 0
    output = capsys.readouterr().out
    assert all(f"\n  {command}" in output for command in course.VERBS)
    assert "02_kv_cache   02: remember keys and values\n" in output and "10_unfinished" not in output


def test_old_pythons_are_turned_away_in_a_sentence(monkeypatch):
    ast.parse(Path(course.__file__).read_text(encoding="utf-8"), feature_version=(3, 6))
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    with pytest.raises(SystemExit, match="needs Python 3.10 or newer, and this is 3.8"):
        runpy.run_path(course.__file__)


def test_demo_runs_every_stage_under_its_heading_up_to_the_first_that_fails(tree):
    status, output, _ = finish(tree, "demo", "--device", "cpu")
    first, second = output.split("\n==== ")[1:]
    assert status == 0 and first.startswith("01_naive: 01: recompute everything ====")
    assert "\nnaive --demo --device cpu\n" in first and second.endswith("\ncached --demo --device cpu\n")
    (tree / "01_naive/main.py").write_text("raise SystemExit(7)\n")
    status, output, errors = finish(tree, "demo")
    assert status == 7 and "cached" not in output
    assert errors == "01_naive/main.py failed with exit status 7. Not run: 02_kv_cache.\n"


def test_a_program_gets_the_other_arguments_and_runs_where_the_user_is(tree, tmp_path_factory):
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


def test_a_reader_that_ends_early_is_no_failure(tree):
    """As in `course.py demo | head`: nothing more is started, and nothing is said."""
    (tree / "01_naive/main.py").write_text(
        "import sys\nsys.path.append('.')\nfrom common.terminal import run_to_end\n"
        "run_to_end(lambda: print('more\\n' * 99999))\n"
    )
    process = start(tree, "demo", cwd=tree)
    while process.stdout.readline() != "more\n":
        pass
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=120) == course.READER_GONE


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
    assert ("\noptions:\n" in output) == course.VERBS[verb].parser
    assert "usage: main.py" not in output and "--prompt TEXT" not in output


def test_options_of_what_is_not_installed_yet_install_nothing(tree):
    environment = {name: value for name, value in os.environ.items() if name != "COURSE_NO_VENV"}
    command = [sys.executable, str(tree / "course.py"), "watch", "--help"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert "See an engine at work" in shown.stdout and "installs what it needs" in shown.stdout
    assert not (tree / ".venv").exists()


def test_a_stage_is_tested_alone(tree):
    """Its own tests and the contract, without processes under Ray, on a learner's folder too; paths go to pytest."""
    tests = ["tests/stages/test_01_02_both.py", "tests/stages/test_02_caches.py", "tests/stages/test_03_later.py"]
    shown = "import os, sys\nprint(*sys.argv[1:], os.environ.get('COURSE_STAGE'))\n"
    write_files(tree, dict.fromkeys(tests, "") | {"pytest.py": shown, "my/02_kv_cache/engine.py": ""})
    for wanted, name, own in (("02", "02_kv_cache", None), ("my/2", "my/02_kv_cache", tree / "my" / "02_kv_cache")):
        status, output, errors = finish(tree, "test", wanted, "-x")
        chosen = f"{tests[0]} {tests[1]} tests/test_contract.py tests/test_contract_claims.py --engine {name} -x"
        assert (status, output) == (0, f"-q -m not ray {chosen} {own}\n")
        assert f"Covered on {name}: {tests[0]}, {tests[1]}, the contract." in errors
    assert finish(tree, "test", f"{tests[0]}::test_one")[1] == f"-q {tests[0]}::test_one None\n"


@pytest.mark.skipif(os.name == "nt", reason="POSIX process groups")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_door_waits_for_its_server_to_end(tree, sent):
    """Ctrl-C reaches both; if the door alone is told to end, it ends the server."""
    (tree / "01_naive/main.py").write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "try: print('serving', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: time.sleep(0.6); print('shut down in order', flush=True); raise SystemExit(3)\n"
    )
    process = start(tree, "serve", "1", start_new_session=True)
    assert process.stdout.readline() == "serving\n"
    os.killpg(process.pid, sent) if sent == signal.SIGINT else process.terminate()
    output, errors = process.communicate(timeout=120)
    assert output == "shut down in order\n" and process.returncode == (130 if sent == signal.SIGINT else 3)


def test_diff_compares_stages_and_a_learners_own_and_needs_nothing_but_python(tree):
    shutil.copytree(course.ROOT / "common" / "learn", tree / "common" / "learn")
    write_files(tree, {"my/02_kv_cache/main.py": "", "my/02_kv_cache/engine.py": "class Engine:\n    mine = 1\n"})

    def diff(stage: str) -> str:
        command = [sys.executable, "-S", str(tree / "course.py"), "diff", stage]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0 and not (tree / ".venv").exists()
        return result.stdout

    assert "+    mine = 1" in diff("my/02") and "01_naive is the first stage" in diff("1")
    reference = diff("2")
    assert "01_naive -> 02_kv_cache" in reference
    assert "\nnew file: cache.py, 2 lines\n" in reference and "\n-        return 1\n+        return 2\n" in reference
    assert "  changed: 4 lines (+2 -2)\n  new: 2 lines (cache.py, 2)\n" in reference
