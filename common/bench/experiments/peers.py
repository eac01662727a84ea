"""Stages 06 and 07 beside vLLM, llama.cpp, OpenVINO and transformers: the same weights, prompts and cores, in turn.

    PEERS=FOLDER python -m common.bench.experiments.peers

The README beside this file says what is measured and how FOLDER is made. An engine that is not there is left out, and
named.
"""

import json
import math
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes.util import find_library
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

from common.bench import plots
from common.bench.ceilings import matmul_flops_per_second, read_bytes_per_second
from common.bench.client import Target, find_target, generate_load
from common.bench.cost_model import parameters, step_flops
from common.bench.documents import parts
from common.bench.experiments import peer_program
from common.bench.harness import Benchmark, Figures, Measured, Unavailable, parsed
from common.bench.load import failure, serving
from common.bench.metrics import percentiles
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.tables import Rows
from common.bench.workloads import Job, page_prompt
from common.loader import Loaded
from common.setup.machine import usable_cores
from common.stages import ROOT, stage_folder
from common.toml import read_toml

OURS, HTTP = "stage 06", "over HTTP"
SPREAD = ("median", "min", "max")


FILE = read_toml(Path(__file__).with_suffix(".toml"))  # It explains the fields of Case and Peer.
OBJECTIVES, OVER_HTTP = FILE["objectives"], FILE["over_http"]


class Case(NamedTuple):
    """In which type and form an engine has the weights."""

    dtype: str
    bytes: float
    model: str | None = None
    quantization: str = "none"


class Peer(NamedTuple):
    """How an engine is started and asked. Texts may name `fields`."""

    engine: str
    model: str
    cases: Sequence[str]
    tint: str
    weights: str = ""
    home: str = ""
    packages: Sequence[str] = ("torch",)
    order: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    alone: Mapping[str, str] = {}
    server: str = ""


CASES = {name: Case(**given) for name, given in FILE["cases"].items()}
PEERS = {name: Peer(**given) for name, given in FILE["peers"].items()}
SIDES = {f"{name} {case}": (name, case) for case in CASES for name, peer in PEERS.items() if case in peer.cases}
SERVERS = {f"{name} {case} {HTTP}": (name, case) for name, case in FILE["servers"]}


# ---- What an engine is given ----


def prompts_of(case: str, sizes: dict, count: int, seed: str) -> list[list[int]]:
    """Return pieces of the lessons, as token ids of the case's model; no two begin alike."""
    return [page_prompt(tokenizer_of(CASES[case].model), sizes["prompt"], f"{seed} {i}") for i in range(count)]


@cache
def tokenizer_of(model: str | None) -> Loaded:
    return Settings(model, "cpu").without_weights()


def fields(peer: Peer, case: str) -> dict[str, str]:
    """Return what texts of a peer may name. Raise Unavailable if the engine or its weights are not there."""
    place, given = Path(os.environ.get("PEERS", "peers")).absolute(), CASES[case]
    home, bundled = place / peer.home, ROOT / "common" / "checkpoints" / "target"
    preload = filter(None, [*map(str, (home / "lib").glob("libiomp5.so")), find_library("tcmalloc_minimal")])
    found = {
        "name": given.model or bundled,
        "folder": place / "models" / given.model if given.model else bundled,
        "gguf": place / "models" / f"{peer.weights or case}.gguf",
        "dtype": given.dtype,
        "quantization": given.quantization,
        "bin": home / "bin",
        "python": home / "bin" / "python" if peer.home else Path(sys.executable),  # In an environment it stays a link.
        "main": stage_folder("06") / "main.py",
        "cores": usable_cores(),
        "cpus": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "preload": ":".join(preload),
    }
    needed = [] if peer.engine == "course" else [found["python"], Path(peer.model.format(**found))]
    if missing := [path.name for path in needed if not path.exists()]:
        raise Unavailable(f"{peer.engine} lacks {missing[0]}: see the README")
    return {name: str(value) for name, value in found.items()}


def variables(peer: Peer, found: Mapping[str, str], more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the environment of a process of this engine; what is set beforehand comes first."""
    given = {name: value.format(**found) for name, value in (peer.variables | more).items()} | dict(os.environ)
    if peer.engine != "course":
        given.pop("GOMP_SPINCOUNT", None)  # the course's own, set by `import common`
    return given | {"HF_HUB_OFFLINE": "1"}


def words(command: str, found: Mapping[str, str]) -> list[str]:
    return shlex.split(command.format_map({name: shlex.quote(value) for name, value in found.items()}))


def answer(command: list, order: dict, given: Mapping[str, str]) -> Figures:
    """Return the figures of peer_program.py. Raise InvalidInput with its last line if it gives none."""
    options = {"capture_output": True, "text": True, "errors": "replace", "env": given}
    done = subprocess.run(command, input=json.dumps(order), **options)
    found = [each["figures"] for each in map(parsed, done.stdout.splitlines()) if each]
    if not found:
        raise failure(f"{order['side']} gave no figures", (done.stdout + done.stderr).splitlines(keepends=True))
    return found[-1]


# ---- What is measured ----


def measure(settings: Settings, sizes: dict, name: str, case: str) -> Figures:
    """Return prompt and decode rates in one process, in float32 the greedy answers, and the machine's floor."""
    peer, found = PEERS[name], fields(PEERS[name], case)
    counts, times = sizes["requests"], sizes["times"]
    prompts = partial(prompts_of, case, sizes)
    order = {
        **{"side": name, "engine": peer.engine, "model": peer.model.format(**found), **peer.order},
        **{"dtype": found["dtype"], "quantization": found["quantization"]},
        **{"packages": peer.packages, "settings": [*peer.variables, *peer.alone], "tokens": sizes["output"]},
        "compared": prompts(sizes["compared"] if CASES[case].dtype == "float32" else 0, "compared"),
        "warm_up": [prompts(count, f"warm-up {count}") for count in counts],
        "loads": [
            [[prompts(count, f"{kind} {count} {time}") for kind in "ab"] for time in range(most)]
            for count, most in zip(counts, times, strict=True)
        ],
    }
    before = floor(sizes, case)
    if peer.engine == "llama":
        figures = measure_llama(peer, found, order)
    elif peer.engine == "course" and not peer.home:
        figures = peer_program.measure(order)
    else:
        figures = answer([found["python"], peer_program.__file__], order, variables(peer, found, peer.alone))
    return figures | {"floor": [(a + b) / 2 for a, b in zip(before, floor(sizes, case), strict=True)]}


def measure_llama(peer: Peer, found: Mapping[str, str], order: dict) -> Figures:
    """Return what llama-batched-bench reports. It chooses no tokens, so llama-server gives the answers.

    With flash attention and without it: the better one counts for each figure. The first line of each load is a
    warm-up.
    """
    import httpx

    given, tokens, prompt = variables(peer, found), order["tokens"], len(order["warm_up"][0][0])
    counts = [len(load[0][0]) for load in order["loads"] for _ in range(1 + len(load))]
    command = "{bin}/llama-batched-bench -m {gguf} -t {cores} -tb {cores} -b 2048 -ub 2048 -lm none "
    command += f"--output-format jsonl -npp {prompt} -ntg {tokens} -npl {','.join(map(str, counts))} "
    command += f"-c {max(counts) * (prompt + tokens)}"
    rates: dict[str, list[list[float]]] = {"speed_pp": [], "speed_tg": []}
    for attention in ("on", "off"):
        asked = words(f"{command} -fa {attention}", found)
        done = subprocess.run(asked, capture_output=True, text=True, errors="replace", env=given)
        lines = (done.stdout + done.stderr).splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.startswith('{"n_kv_max"')]
        if [row["pl"] for row in rows] != counts:
            raise failure("llama-batched-bench gave no figures", lines)
        for name, values in rates.items():
            loads = [[row[name] for row in rows if row["pl"] == count][1:] for count in dict.fromkeys(counts)]
            values.append(list(map(statistics.median, loads)))
    answers = []
    if order["compared"]:
        with serving(words(f"{peer.server} -ctk f32 -ctv f32", found), "llama-server", given) as url:
            body = {"n_predict": tokens, "temperature": 0, "ignore_eos": True, "return_tokens": True}
            asked = (httpx.post(f"{url}/completion", json=body | {"prompt": each}) for each in order["compared"])
            answers = [" ".join(map(str, each.json()["tokens"])) for each in asked]
    version = subprocess.run(words("{bin}/llama-server --version", found), capture_output=True, text=True)
    prompts, decode = (list(map(max, *values)) for values in rates.values())
    return {
        **{"prompts": prompts, "decode": decode, "answers": answers, "settings": {"command": command}},
        "versions": {"llama.cpp": (version.stdout + version.stderr).splitlines()[0]},
    }


def measure_http(settings: Settings, sizes: dict, name: str, case: str) -> Figures:
    """Return OVER_HTTP of a server, the engine's own, for each load."""
    peer, found = PEERS[name], fields(PEERS[name], case)
    prompts = map(tokenizer_of(CASES[case].model).tokenizer.decode, prompts_of(case, sizes, 1000, "over HTTP"))

    def ask(count: int, **load: float) -> list[float]:
        jobs = [Job(prompt, sizes["output"]) for prompt in islice(prompts, count)]
        result = generate_load(url, jobs, target, **load).checked()
        times = [percentiles(result.values(kind))[rank] for kind in ("ttft", "tpot") for rank in ("p50", "p99")]
        goodput = map(result.goodput, OBJECTIVES.values())
        return [result.throughput, count / result.seconds, *goodput, *times]

    with serving(words(peer.server, found), f"{name}'s server", variables(peer, found)) as url:
        target = find_target(url, Job(next(prompts), 8), Target())
        ask(sizes["closed"][-1][0], concurrency=sizes["closed"][-1][0])  # This call and the next are warm-ups.
        ask(round(sizes["open"][-1] * sizes["seconds"]), rate=sizes["open"][-1])
        return {
            "closed": [ask(count, concurrency=clients) for clients, count in sizes["closed"]],
            "open": [ask(round(rate * sizes["seconds"]), rate=rate) for rate in sizes["open"]],
            **{"command": peer.server, "variables": dict(peer.variables)},
        }


def floor(sizes: dict, case: str) -> list[float]:
    """Return the seconds that a decode step takes at least, on this machine now, for each number of requests.

    Weights, K and V are read once; in a type of floats, products take at least as long as large ones do.
    """
    cpu, given, config = torch.device("cpu"), CASES[case], Settings(CASES[case].model, "cpu").config()
    dtype, context = getattr(torch, given.dtype), sizes["prompt"] + sizes["output"] // 2
    weights, kv = given.bytes * parameters(config), context * config.kv_bytes_per_token(dtype)
    reads = read_bytes_per_second(cpu, min(round(weights), 2**29))
    product = matmul_flops_per_second(cpu, dtype) if given.quantization == "none" else math.inf
    flops = step_flops(config, 1, context)
    return [max((weights + n * kv) / reads, n * flops / product) for n in sizes["requests"]]


def derive(sizes: dict, measured: Measured, *_) -> Figures:
    """Return of each side the percentage of the ceiling that it reaches, and how many tokens are stage 06's."""
    found: Figures = {}
    for side, (_, case) in SIDES.items():
        figures, ours = measured.get(side), measured.get(f"{OURS} {case}")
        if figures:
            took = [count / rate for count, rate in zip(sizes["requests"], figures["decode"], strict=True)]
            pairs = list(zip(figures["floor"], took, strict=True))
            found[f"{side} percent"] = [100 * least / seconds for least, seconds in pairs]
            found[f"{side} above"] = [1e3 * (seconds - least) for least, seconds in pairs]  # milliseconds of a step
        if figures and ours and figures["answers"]:
            pairs = zip(ours["answers"], figures["answers"], strict=True)
            found[f"{side} alike"] = [len(os.path.commonprefix([*map(str.split, pair)])) for pair in pairs]
    return found


# ---- What is shown ----


def report(document: dict) -> dict[str, Rows]:
    """Return the README's tables: in a cell the medians by requests at once, of "alike" the least by prompt, of
    "spread" how far the repeats' decode rates lie apart, in percent of the median."""
    sizes, sides, figures = parts(document)

    def by_case(values: Callable[[str], Sequence[float]]) -> Rows:
        """Return a row for each engine and a column for each case, with these values of the side in each cell."""
        rows = [["", *CASES]]
        for peer in PEERS:
            measured = [f"{peer} {case}" if f"{peer} {case}" in sides else "" for case in CASES]
            row = [side and " / ".join(map(plots.short, values(side))) for side in measured]
            rows += [[peer, *row]] if any(row) else []
        return rows

    def spread(side: str) -> list[float]:
        rates = [sides[side]["decode"][name] for name in SPREAD]
        return [100 * (most - least) / middle for middle, least, most in zip(*rates, strict=True)]

    def over_http(loop: str, load: str, loads: list) -> Rows:
        rows = [["server", load, *OVER_HTTP]]
        for side in SERVERS:
            if side in sides:
                name, points = side.removesuffix(f" {HTTP}"), zip(loads, sides[side][loop]["median"], strict=True)
                rows += [[name, at, *map(plots.short, values)] for at, values in points]
        return rows

    return {
        "decode": by_case(lambda side: sides[side]["decode"]["median"]),
        "prompts": by_case(lambda side: sides[side]["prompts"]["median"]),
        "percent": by_case(lambda side: figures[f"{side} percent"]["median"]),
        "above": by_case(lambda side: figures[f"{side} above"]["median"]),
        "alike": by_case(lambda side: figures.get(f"{side} alike", {"min": ()})["min"]),
        "spread": by_case(spread),
        "closed": over_http("closed", "clients", [clients for clients, _ in sizes["closed"]]),
        "open": over_http("open", "arriving/s", sizes["open"]),
    }


def draw(document: dict, png: Path) -> None:
    figures, requests = document["figures"], document["sizes"]["requests"]
    tints = {name: plots.COLORS.get(peer.tint, peer.tint) for name, peer in PEERS.items()}
    message = "Decoding: what each engine reaches of the machine's ceiling"
    shown = document | {"settings": document["settings"] | {"model": "SmolLM2-135M", "dtype": "four types"}}
    with plots.page(png, shown, message, rows=2, columns=2, height=7.4) as panels:
        for panel, case in zip(panels, list(CASES)[:4], strict=True):
            found = {name: figures.get(f"{name} {case} percent") for name in PEERS}
            bars = {name: {key: list(map(round, each[key])) for key in SPREAD} for name, each in found.items() if each}
            if bars:
                plots.grouped_bars(panel, requests, bars, tints)
                panel.set_ylim(top=1.4 * panel.get_ylim()[1])  # leaves room for the legend above the bars
                panel.legend(frameon=False, fontsize=9)
            plots.axes(panel, "requests at once", "percent of the ceiling", case)


BENCHMARK = Benchmark.beside(
    __file__,
    __doc__,
    sides={side: partial(measure, name=name, case=case) for side, (name, case) in SIDES.items()}
    | {side: partial(measure_http, name=name, case=case) for side, (name, case) in SERVERS.items()},
    derive=derive,
    draw=draw,
    report=report,
)

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
