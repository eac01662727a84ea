"""What is wrong with a command line is said in a sentence, before anything is computed, sent or written."""

import runpy
import shlex
import socket
import sys
from functools import cache
from pathlib import Path

import pytest

from common.loader import load_model
from common.stages import ROOT
from common.toml import read_toml

MISTAKES = read_toml(Path(__file__).with_name("command_lines.toml"))


load_model_once = cache(load_model)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    ("loads", "program", "words", "says"),
    [
        (loads, program, *row)
        for loads, programs in MISTAKES.items()
        for program, rows in programs.items()
        for row in rows
    ],
)
def test_a_mistake_is_answered_in_a_sentence(loads, program, words, says, monkeypatch, capsys, tmp_path):
    load = load_model_once if loads == "loads" else lambda *_, **__: pytest.fail("the model loads")
    monkeypatch.setattr("common.cli.load_model", load)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(SystemExit) as ended:
        stands_for = {"EMPTY": tmp_path, "FILE": __file__, "TAKEN": server.getsockname()[1], "NINES": "9" * 400}
        for name, text in stands_for.items():
            words, says = (each.replace(name, str(text)) for each in (words, says))
        monkeypatch.setattr(sys, "argv", [program, *shlex.split(words)])
        if program.endswith(".py"):
            runpy.run_path(str(ROOT / program), run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__")
    status, (output, errors) = ended.value.code, capsys.readouterr()
    # Python prints a string, and exits with 1. argparse and the harness have written to stderr before.
    assert status in (1, 2) or isinstance(status, str) and "\n" not in status
    if isinstance(status, str) and not program.startswith(("course.py", "common.learn")):  # These speak to learners.
        assert status.startswith("error: ")
    assert says in f"{status} {errors}" and output == "" and not any(tmp_path.iterdir())
