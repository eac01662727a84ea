"""Writes gpu.ipynb, the course on a hosted GPU: `python -m common.bench.gpu.notebook`.

The notebook is made here, so that it cannot drift from the commands that it runs; a test compares the two, and executes
it on a CPU with the smallest sizes. It is committed without output: what a machine has measured is in its results.
"""

import json
import sys
from pathlib import Path

from common.bench.hardware import ROOT

NOTEBOOK = ROOT / "gpu.ipynb"
CELLS = [
    """# The course on a GPU

Runs the three commands of [GPU.md](GPU.md), the demos of stages 05 to 07 and the course's picture on the GPU of this
machine, shows what each part of a step may take beside what it takes, and packs all results into one file for a pull
request. On a host such as Colab or Kaggle: choose a GPU first, then *Run all*; half an hour. Without a GPU everything
runs with the smallest sizes, which measures nothing worth knowing.
""",
    """import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = ""  # its address, if this notebook was opened without the repository around it
TINY = bool(os.environ.get("NOTEBOOK_TINY"))  # for the test of this notebook

if not Path("course.py").exists():
    if not Path("course").exists():
        if not REPOSITORY:
            raise SystemExit("There is no course.py here: set REPOSITORY above to the repository's address.")
        subprocess.run(["git", "clone", "--depth", "1", REPOSITORY, "course"], check=True)
    os.chdir("course")
print("in", Path.cwd())
""",
    """**What is missing is installed.** The host's own torch and triton stay: they fit its driver.
""",
    """import torch

packages = {"transformers": "", "safetensors": "", "numpy": "", "matplotlib": "", "rich": "", "pytest": "",
            "httpx": "", "hypothesis": "", "ray": ""}
for line in Path("requirements.txt").read_text().splitlines():
    name = line.split("#")[0].split(";")[0].strip()
    for package in packages:
        if name.startswith(package) and not name.removeprefix(package)[:1].isalnum():
            packages[package] = name
missing = [asked or name for name, asked in packages.items() if importlib.util.find_spec(name) is None]
if missing:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *missing], check=True)
GPU = torch.cuda.get_device_name() if torch.cuda.is_available() else None
print(f"torch {torch.__version__}, {GPU or 'no GPU: everything runs with the smallest sizes'}")
""",
    """OUT = Path("gpu-results").resolve()
OUT.mkdir(exist_ok=True)
statuses = {}


def run(name, *arguments):
    \"\"\"Run a command of the course, show what it prints, and keep that in a file. A failure stops no other.\"\"\"
    command = [sys.executable, *map(str, arguments)]
    print("$ python", *command[1:], flush=True)
    with (OUT / f"{name}.txt").open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in process.stdout:
            print(line, end="")
            file.write(line)
    statuses[name] = process.wait()
    print(f"[{name}: exit status {statuses[name]}]")
""",
    """## 1. Are the kernels right, and which tile is fastest?
""",
    """run("kernels", "-m", "common.bench.gpu", "--out", OUT, "--only", "kernels")
""",
    """## 2. Do all stages say the same tokens?
""",
    """if not TINY:
    run("contract", "-m", "common.bench.gpu", "--out", OUT, "--only", "contract")
""",
    """## 3. Where does the time of a step go?

A line that takes far more than its budget is where to look first.
""",
    """rates = [] if GPU else ["--bandwidth", "4.2", "--tflops", "790"]  # without a GPU: the arithmetic, for an H200
for model, requests in (("Qwen3-0.6B", 256), ("Qwen3-0.6B", 1), ("Qwen3-8B", 1))[TINY and 2 :]:
    run(f"budget-{model}-{requests}", "-m", "common.bench.gpu.budget", "--model", model, "--requests", requests, *rates)
""",
    """## The demos of stages 05 to 07
""",
    """for stage in ("05_paged_attention", "06_prefix_cache", "07_speculative"):
    if not TINY:
        run(f"demo-{stage[:2]}", f"{stage}/main.py", "--demo")
if TINY:
    run("prompt-06", "06_prefix_cache/main.py", "--prompt", "The capital of France is", "--max-tokens", "4")
""",
    """## All measurements, and the course's picture
""",
    """if not TINY:
    run("all", "-m", "common.bench.gpu", "--out", OUT)
    run("picture", "common/bench/benchmark.py", "--results", OUT)
    from IPython.display import Image, display

    for png in sorted(OUT.glob("*.png")):
        display(Image(filename=png))
""",
    """## One file for a pull request
""",
    """versions = f"torch {torch.__version__}, Python {sys.version.split()[0]}"
commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip() or "unknown"
table = "\\n".join(f"| {name} | {'complete' if status == 0 else f'exit status {status}'} |"
                  for name, status in statuses.items())
words = f\"\"\"Results on {GPU or 'a CPU, with the smallest sizes: of no use but to try this notebook'}

{versions}; measured at commit {commit} by gpu.ipynb, nothing changed by hand.

| command | |
|---|---|
{table}
\"\"\"
(OUT / "PULL_REQUEST.md").write_text(words)
if Path("common/attention/tuned.json").exists():
    (OUT / "tuned.json").write_text(Path("common/attention/tuned.json").read_text())
packed = Path("gpu-results.zip").resolve()
with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
    for path in sorted(OUT.rglob("*")):
        archive.write(path, path.relative_to(OUT.parent))
print(words)
print(f"{packed}: {packed.stat().st_size / 2**20:.1f} MiB. CONTRIBUTING.md says how results are added.")
""",
]


def notebook() -> dict:
    """The notebook as a JSON value, format 4.5."""
    cells = []
    for number, text in enumerate(CELLS):
        cell = {"cell_type": "code", "execution_count": None, "outputs": []}
        if number == 0 or text.startswith(("#", "**")):
            cell = {"cell_type": "markdown"}
        cells.append(cell | {"id": f"cell-{number}", "metadata": {}, "source": text.strip().splitlines(keepends=True)})
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": python}, "nbformat": 4, "nbformat_minor": 5}


def text() -> str:
    return json.dumps(notebook(), indent=1) + "\n"


def main(path: Path = NOTEBOOK) -> int:
    path.write_text(text(), encoding="utf-8")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
