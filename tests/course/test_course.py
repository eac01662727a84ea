"""course.py, the door: what a learner types first has to work, or to say in a sentence what is wrong."""

import ast
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import course

STAGES = {
    "01_naive/README.md": "# 01: recompute everything\n\nWhy it is slow.\n",
    "01_naive/main.py": "import sys\nprint('naive', *sys.argv[1:])\n",
    "01_naive/engine.py": "class Engine:\n    def step(self):\n        return 1\n",
    "02_kv_cache/main.py": '"""Remember keys and values."""\nimport sys\nprint("cached", *sys.argv[1:])\n',
    "02_kv_cache/engine.py": "class Engine:\n    def step(self):\n        return 2\n",
    "02_kv_cache/cache.py": "KEYS = []\nVALUES = []\n",
    "02_kv_cache/benchmark.py": "print('measured')\n",
    "02_kv_cache/results/plot.py": "print('not a lesson')\n",
    "10_unfinished/README.md": "# a folder without main.py is no stage\n",
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
    shutil.copy(course.__file__, tmp_path)
    return tmp_path


def start(tree: Path, *arguments: str, **options) -> subprocess.Popen:
    """Start course.py as a learner does, but on the Python that runs the tests."""
    environment = {**os.environ, "COURSE_NO_VENV": "1"}
    command = [sys.executable, str(tree / "course.py"), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes, **options)


def finish(tree: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(tree, *arguments)
    output, errors = process.communicate(timeout=30)
    return process.returncode, output, errors


@pytest.mark.parametrize("wanted", ["2", "02", "02_kv_cache", "02_kv_cache/", "./02_kv_cache"])
def test_a_stage_goes_by_number_or_folder(tree, wanted):
    assert course.pick_stage(course.find_stages(tree), wanted).name == "02_kv_cache"


@pytest.mark.parametrize("wanted", ["0", "3", "10", "cache", "02_kv", "..", ""])
def test_an_unknown_stage_is_answered_with_those_that_exist(tree, wanted):
    with pytest.raises(SystemExit) as stop:
        course.pick_stage(course.find_stages(tree), wanted)
    assert str(stop.value) == f"There is no stage {wanted!r}; there is 01_naive, 02_kv_cache."


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["demo", "--help"]])
def test_help_lists_the_commands_and_the_stages_with_their_titles(tree, capsys, arguments):
    assert course.main(arguments, tree) == 0
    output = capsys.readouterr().out
    assert all(f"\n  {command}" in output for command in ("demo", "serve", "watch", "bench", "diff", "test"))
    assert "01_naive      01: recompute everything\n" in output
    assert "02_kv_cache   Remember keys and values.\n" in output
    assert "10_unfinished" not in output


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["dmeo"], "There is no command 'dmeo'; there is demo, serve, watch, bench, diff and test."),
        (["serve"], "Which stage shall `serve` take? There is 01_naive, 02_kv_cache."),
        (["diff", "--plain"], "Which stage shall `diff` take? There is 01_naive, 02_kv_cache."),
        (["bench", "01"], "There is nothing to run: no benchmark.py was found."),
    ],
)
def test_a_wrong_command_line_is_answered_in_a_sentence(tree, arguments, answer):
    status, _, errors = finish(tree, *arguments)
    assert (status, errors) == (1, answer + "\n")


def test_old_pythons_are_turned_away_in_a_sentence(monkeypatch):
    ast.parse(Path(course.__file__).read_text(encoding="utf-8"), feature_version=(3, 8))
    monkeypatch.setattr(course.sys, "version_info", (3, 8, 10))
    with pytest.raises(SystemExit, match="needs Python 3.10 or newer, and this is 3.8"):
        course.check_python()


def test_demo_runs_every_stage_under_its_heading(tree):
    status, output, _ = finish(tree, "demo", "--device", "cpu")
    lines = output.split("\n")
    assert status == 0
    assert lines[1].startswith("==== 01_naive: 01: recompute everything ====")
    assert lines[2] == "naive --demo --device cpu"
    assert lines[4].startswith("==== 02_kv_cache: Remember keys and values. ====")
    assert lines[5] == "cached --demo --device cpu"


def test_one_stage_gets_the_remaining_arguments(tree):
    assert finish(tree, "demo", "2", "--device", "cpu") == (0, "cached --demo --device cpu\n", "")
    assert finish(tree, "serve", "01", "--port", "9000") == (0, "naive --serve --port 9000\n", "")


def test_bench_runs_the_stages_that_have_one(tree):
    assert finish(tree, "bench") == (0, "measured\n", "")


def test_demo_stops_at_the_first_failure_and_hands_on_its_status(tree):
    (tree / "01_naive/main.py").write_text("raise SystemExit(7)\n")
    status, output, errors = finish(tree, "demo")
    assert status == 7 and "cached" not in output
    assert errors == "01_naive/main.py failed with exit status 7. Not run: 02_kv_cache.\n"


def test_tests_go_to_pytest(tree):
    write_files(tree, {"test_sample.py": "def test_one(): pass\ndef test_two(): pass\n"})
    status, output, _ = finish(tree, "test", "-k", "one")
    assert status == 0 and "1 passed, 1 deselected" in output


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
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (130, "shut down in order\n", "")


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_stopped_door_stops_its_server(tree):
    (tree / "01_naive/main.py").write_text("import time\nprint('serving', flush=True)\ntime.sleep(60)\n")
    process = start(tree, "serve", "1")
    assert process.stdout.readline() == "serving\n"
    process.terminate()
    process.communicate(timeout=30)  # ends only once the child has closed its end of the pipe
    assert process.returncode == 128 + signal.SIGTERM


class FakeMachine:
    """Stands in for subprocess.run: venv makes a folder, pip answers what it is told to; both are counted."""

    def __init__(self) -> None:
        self.venvs_made = 0
        self.installs: list[list[str]] = []
        self.pip_fails = False

    def run(self, command, **options):
        output = "line\n" * 40 + "ERROR: no space left\n"
        if "venv" in command:
            self.venvs_made += 1
            python = Path(command[-1]) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
        elif "install" in command:
            self.installs.append(command[command.index("install") + 1 :])
            if self.pip_fails:
                return subprocess.CompletedProcess(command, 1, stdout=output)
        return subprocess.CompletedProcess(command, 0, stdout=output)


@pytest.fixture
def machine(monkeypatch) -> FakeMachine:
    fake = FakeMachine()
    monkeypatch.delenv("COURSE_NO_VENV", raising=False)
    monkeypatch.setattr(course.subprocess, "run", fake.run)
    monkeypatch.setattr(course, "is_cpu_torch_better", lambda: False)
    return fake


def test_the_environment_is_made_once_and_follows_the_requirements(tree, machine):
    python = course.prepare_environment(tree)
    assert Path(python).is_relative_to(tree / ".venv")
    assert course.prepare_environment(tree) == python
    assert (machine.venvs_made, len(machine.installs)) == (1, 1)

    (tree / "requirements.txt").write_text("numpy>=2\n")
    course.prepare_environment(tree)
    course.prepare_environment(tree)
    assert (machine.venvs_made, len(machine.installs)) == (1, 2)


def test_a_failed_install_shows_why_and_is_tried_again(tree, machine):
    machine.pip_fails = True
    with pytest.raises(SystemExit) as stop:
        course.prepare_environment(tree)
    *_, reason, advice = stop.value.code.splitlines()
    assert reason == "ERROR: no space left" and advice.startswith("pip failed, for the reason above")

    machine.pip_fails = False
    course.prepare_environment(tree)
    course.prepare_environment(tree)
    assert (machine.venvs_made, len(machine.installs)) == (1, 2)


def test_a_failed_update_leaves_nothing_that_looks_finished(tree, machine):
    course.prepare_environment(tree)
    before = (tree / "requirements.txt").read_text()
    (tree / "requirements.txt").write_text("numpy>=99\n")
    machine.pip_fails = True
    with pytest.raises(SystemExit):
        course.prepare_environment(tree)
    machine.pip_fails = False
    (tree / "requirements.txt").write_text(before)
    course.prepare_environment(tree)
    assert len(machine.installs) == 3


def test_an_environment_half_made_or_of_another_python_is_made_anew(tree, machine):
    (tree / ".venv/bin").mkdir(parents=True)
    course.prepare_environment(tree)
    assert (machine.venvs_made, len(machine.installs)) == (1, 1)
    stamp = tree / ".venv/course-stamp"
    stamp.write_text(f"3.9 {stamp.read_text().split()[1]}")
    course.prepare_environment(tree)
    assert (machine.venvs_made, len(machine.installs)) == (2, 2)


def test_without_a_gpu_the_cpu_build_of_torch_comes_first(tree, machine, monkeypatch):
    monkeypatch.setattr(course, "is_cpu_torch_better", lambda: True)
    course.prepare_environment(tree)
    torch, everything = machine.installs
    assert torch[-3:] == ["--extra-index-url", course.TORCH_CPU_INDEX, "torch==2.13.0"]
    assert everything[-2:] == ["-r", str(tree / "requirements.txt")]


def test_an_index_that_does_not_answer_is_done_without(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError("no route")

    monkeypatch.setattr(course.urllib.request, "urlopen", refuse)
    assert not course.is_cpu_torch_better()


def test_a_python_without_venv_says_what_to_install(tree, machine, monkeypatch):
    monkeypatch.setattr(course.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="apt install python3-venv"):
        course.prepare_environment(tree)


def test_course_no_venv_leaves_everything_alone(tree, machine, monkeypatch):
    monkeypatch.setenv("COURSE_NO_VENV", "1")
    assert course.prepare_environment(tree) == sys.executable
    assert machine.installs == [] and not (tree / ".venv").exists()


def test_diff_shows_new_files_and_changes_in_reading_order(tree, capsys):
    assert course.main(["diff", "02"], tree) == 0
    output = capsys.readouterr().out
    headings = [line for line in output.splitlines() if line and line[0] not in "+-@ "]
    assert headings == [
        "01_naive -> 02_kv_cache",
        "new file: cache.py, 2 lines",
        "engine.py: +1 -1",
        "main.py: +2 -1",
        "5 changed lines (+3 -2) in files that existed before.",
        "Left out: benchmark.py and demo.py, which show and measure the lesson.",
        "New: cache.py, 2 lines.",
    ]
    assert "\n+KEYS = []\n" in output and "\n-        return 1\n+        return 2\n" in output
    assert "not a lesson" not in output and "\033" not in output


def test_diff_names_the_function_around_a_change(tmp_path):
    old = "class Engine:\n    def step(self):\n" + "".join(f"        x{i} = {i}\n" for i in range(20))
    write_files(tmp_path, {"01_a/engine.py": old, "02_b/engine.py": old + "        return x0\n"})
    lines = course.diff_stages(tmp_path / "01_a", tmp_path / "02_b")
    assert "@@ -20,3 +20,4 @@ def step(self):" in lines


def test_the_first_stage_has_nothing_to_be_compared_with(tree, capsys):
    assert course.main(["diff", "1"], tree) == 0
    assert "01_naive is the first stage" in capsys.readouterr().out


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert course.paint("+line", "32") == "+line"
    monkeypatch.setattr(course.sys.stdout, "isatty", lambda: True, raising=False)
    assert course.paint("+line", "32") == "\033[32m+line\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert course.paint("+line", "32") == "+line"
