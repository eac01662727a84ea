"""The rules that every file keeps: formatted, free of lint, and light to import."""

import subprocess
import sys

import pytest

from common.stages import ROOT

LIGHT = ["[0-9]*/engine.py", "[0-9]*/benchmark.py", "common/bench/[a-z]*.py", "common/bench/gpu/[a-z]*.py"]
HEAVY_PACKAGES = ["flask", "fastapi", "uvicorn", "httpx", "ray", "matplotlib", "rich"]


def run(*words: str) -> None:
    """Run Python with these words in the course's folder; its status has to be 0."""
    result = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, "\n" + result.stdout + result.stderr


@pytest.mark.parametrize(
    "command", ["-m ruff check --output-format concise .", "-m ruff format --check .", "tools/size.py --check"]
)
def test_files_are_free_of_lint_formatted_and_no_larger_than_agreed(command):
    run(*command.split())


def test_models_engines_and_benchmarks_import_no_server_and_no_plots():
    """A GPU machine that has only torch, transformers and triton can run the engines, and measure them."""
    paths = [path for pattern in LIGHT for path in sorted(ROOT.glob(pattern))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    program = (
        "import importlib, sys\n"
        f"for name in {names}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = [package for package in {HEAVY_PACKAGES} if package in sys.modules]\n"
        "    if heavy:\n"
        "        sys.exit(f'importing {name} brings in {heavy}')\n"
    )
    run("-c", program)
