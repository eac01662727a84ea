"""gpu.ipynb has no output, and runs from its first cell to its last."""

import importlib.util
import json
import shutil
import zipfile

import pytest

from common.bench.hardware import ROOT

TEXT = (ROOT / "gpu.ipynb").read_text(encoding="utf-8")
needs_nbclient = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("nbclient", "ipykernel")),
    reason="needs the packages nbclient and ipykernel: gpu.ipynb",
)


def test_the_notebook_is_committed_without_output():
    """What a machine has measured is in its results."""
    cells = [cell for cell in json.loads(TEXT)["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells) and len(cells) > 5


@needs_nbclient
def test_the_notebook_runs(tmp_path, monkeypatch):
    """On a CPU, with the smallest sizes, in a copy of the course, since it writes where it is."""
    import nbformat
    from nbclient import NotebookClient

    left_out = shutil.ignore_patterns(".git", ".venv", "results", "__pycache__", ".*_cache", ".hypothesis")
    course = shutil.copytree(ROOT, tmp_path / "course", ignore=left_out)
    monkeypatch.setenv("NOTEBOOK_TINY", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    notebook = nbformat.reads(TEXT, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": course}}).execute()
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert said.count("exit status 0]") == said.count("exit status") == 3, said[-3000:]
    assert "attention" in said and "Paris" in said
    with zipfile.ZipFile(course / "gpu-results.zip") as archive:
        names = archive.namelist()
        words = archive.read("gpu-results/PULL_REQUEST.md").decode()
    assert any(name.endswith("-kernels.json") for name in names) and "gpu-results/budget-Qwen3-8B-1.txt" in names
    assert words.startswith("Results on a CPU") and words.count("| complete |") == 3
