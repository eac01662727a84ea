"""The rules that every file keeps: formatted, free of lint, and light to import."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIGHT_MODULES = ["common.model", "common.loader", "common.sampling", "common.engine"]
HEAVY_PACKAGES = ["flask", "fastapi", "uvicorn", "httpx", "ray", "matplotlib", "rich"]


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_ruff_finds_nothing(command):
    ruff = [sys.executable, "-m", "ruff", *command, "--output-format", "concise", "."]
    result = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, "\n" + result.stdout + result.stderr


def test_models_and_engines_import_no_server_and_no_plots():
    """A GPU machine that has only torch, transformers and triton can run the engines."""
    names = [name for name in LIGHT_MODULES if (ROOT / f"{name.replace('.', '/')}.py").exists()]
    names += [f"{engine.parent.name}.engine" for engine in sorted(ROOT.glob("[0-9][0-9]_*/engine.py"))]
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
