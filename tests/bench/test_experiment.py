"""Experiments: the signature of `measure` is the command line, and what it returns is the document."""

import json

from common.bench.experiment import run_experiment


def measure(settings, stage: str = "06", seconds: float = 2.0, limit: float | None = None, fast: bool = False) -> dict:
    if seconds < 0:
        raise ValueError("time runs forward")
    return {"seen": [settings.device, stage, seconds, limit, fast], "wrong": ["too slow"] * (not fast)}


def run(capsys, *arguments: str, **options) -> tuple[int, list[str]]:
    status = run_experiment(measure, ["--device", "cpu", *arguments], **options)
    return status, capsys.readouterr().out.splitlines()


def test_parameters_are_options_of_their_type_and_default(capsys):
    arguments = ["--stage", "05", "--seconds", "3", "--limit", "7", "--fast"]
    status, [line] = run(capsys, *arguments, model="Qwen3-0.6B", load_format="dummy")
    document = json.loads(line)
    assert status == 0 and document["seen"] == ["cpu", "05", 3.0, 7.0, True]
    assert document["sizes"] == {"stage": "05", "seconds": 3.0, "limit": 7.0, "fast": True}
    assert document["benchmark"] == "tests.bench.test_experiment" and document["settings"]["model"] == "Qwen3-0.6B"
    assert {"torch", "commit", "date"} <= document["hardware"].keys()


def test_something_wrong_is_the_exit_status(capsys):
    assert run(capsys)[0] == 1
    assert run_experiment(measure, ["--seconds", "-1"]) == 1 and "time runs forward" in capsys.readouterr().err


def test_the_document_is_written_where_asked_or_where_it_belongs(capsys, tmp_path):
    def path(document):
        return tmp_path / f"{document['sizes']['stage']}.json"

    _, [shown, line] = run(capsys, "--fast", path=path, table=lambda document: [f"stage {document['sizes']['stage']}"])
    assert shown == "stage 06" and json.loads((tmp_path / "06.json").read_text()) == json.loads(line)
    run(capsys, "--fast", "--stage", "07", "--json", str(tmp_path / "mine.json"), path=path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["06.json", "mine.json"]
