"""The rules that every file keeps: formatted, free of lint, and light to import."""

import subprocess
import sys

import pytest

from common.stages import ROOT

LIGHT = ["[0-9]*/engine.py", "[0-9]*/benchmark.py", "common/bench/[a-z]*.py", "common/bench/gpu/[a-z]*.py"]
HEAVY_PACKAGES = ["flask", "fastapi", "uvicorn", "httpx", "ray", "matplotlib", "rich"]


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff_finds_nothing(command):
    ruff = [sys.executable, "-m", "ruff", *command, "--output-format", "concise", "."]
    result = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, "\n" + result.stdout + result.stderr


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
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, "\n" + result.stderr


def test_the_code_is_no_larger_than_agreed():
    result = subprocess.run([sys.executable, "tools/size.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, "\n" + result.stdout + result.stderr
