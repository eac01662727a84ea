"""The metrics for Prometheus, and the queries of the dashboard."""

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import MagicMock, call

import pytest

from common.serving import metrics
from common.stages import ROOT, load_engine
from tests.helpers.engine_options import endless
from tests.helpers.serving_openai import ENDLESS, openai_server
from tests.helpers.serving_stage_03 import SteppingEngine, wait_until

pytestmark = pytest.mark.usefixtures("apart")


def values_of(service) -> dict[str, float]:
    """Return what the server shows under vLLM's names, buckets left out; for a reason, the name ends with it."""
    pattern = r'^vllm:(\w+)\{(?:finished_reason="(\w+)",)?model_name="bundled"\} (\S+)$'
    found = re.findall(pattern, service.get("/metrics").text, re.MULTILINE)
    return {f"{name} {reason}".strip(): float(value) for name, reason, value in found}


def test_metrics(loaded, apart):
    with openai_server("06", loaded) as service:
        asked = {"prompt": [*range(100, 140)], "max_tokens": 5, "ignore_eos": True, "temperature": 0}
        used = [service.post(**asked).json()["usage"] for _ in range(2)]
        service.hang_up_after(ENDLESS)
        wait_until(service.idle)
        values = values_of(service)
    assert [one["prompt_tokens_details"]["cached_tokens"] for one in used] == [0, 32], "as each answer says, too"
    zero = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
    completed = [name for name in metrics.HISTOGRAMS if name.startswith(("e2e", "request"))]
    shown = dict.fromkeys([*zero, "request_success_total error"], 0) | {f"{name}_count": 2 for name in completed}
    shown |= {"time_to_first_token_seconds_count": 3, "request_queue_time_seconds_count": 3}  # with the aborted one
    shown |= {"request_success_total length": 2, "request_success_total abort": 1, "prefix_cache_hits_total": 32}
    shown |= {"request_prompt_tokens_sum": 80, "request_generation_tokens_sum": 10}
    assert {name: values.get(name) for name in shown} == shown
    assert values["prefix_cache_queries_total"] >= 80
    parts = (values[f"request_{part}_time_seconds_sum"] for part in ("prefill", "decode"))
    assert sum(parts) == pytest.approx(values["request_inference_time_seconds_sum"])
    gaps = values["inter_token_latency_seconds_count"]  # reports of another process may arrive together
    assert values["time_per_output_token_seconds_count"] == gaps >= (2 if apart else 8)
    counted = {f"{name.removeprefix('vllm:')}_total" for name, _ in metrics.COUNTED.values()}
    buckets = {f"{name}_bucket" for name in metrics.HISTOGRAMS}
    asked = set(re.findall(r"vllm:(\w+)", (ROOT / "common" / "serving" / "monitoring" / "grafana.json").read_text()))
    names = {name.split()[0] for name in values}
    assert asked and asked <= names | counted | buckets, "of the dashboard"


def test_speculation_is_counted(loaded, apart):
    with openai_server("07", loaded, engine=load_engine("07")(loaded, num_draft_tokens=3)) as service:
        service.post(prompt="Once upon a time", max_tokens=40, ignore_eos=True, temperature=0)
        wait_until(service.idle)  # the answer may arrive before the figures of its last step
        values = values_of(service)
    names = ("drafts", "draft_tokens", "accepted_tokens")
    drafts, drafted, accepted = (values[f"spec_decode_num_{name}_total"] for name in names)
    assert 0 < drafts <= drafted and 0 < accepted <= drafted
    # A pass emits the accepted tokens and one more, as one chunk; the first token has no gap before it.
    gaps = values["generation_tokens_total"] - accepted - 1
    assert 0 < values["inter_token_latency_seconds_count"] <= gaps
    assert apart or values["inter_token_latency_seconds_count"] == gaps, "reports may arrive together"


def test_counters_keep_what_a_lost_worker_had_counted(loaded):
    measured = metrics.Measured(load_engine("06")(loaded), "bundled")
    for hits, shown in ((50, 50), (20, 50), (30, 60)):
        measured.on_stats(measured.last_stats | {"prefix_tokens_hit": hits})
        assert f'vllm:prefix_cache_hits_total{{model_name="bundled"}} {shown}.0'.encode() in measured.exposition()


def test_waiting_requests_cost_a_step_nothing(loaded):
    """Metrics look at a request when it arrives, runs and ends, and never walk all open requests in between.

    They count the tokens of a prompt when it has been run to its end: here in its second step.
    """

    class Unseen(dict):
        def _refuse(self, *_):
            raise AssertionError("all open requests were walked")

        __iter__ = items = values = keys = _refuse

    engine = load_engine("06")(loaded, max_running=1, token_budget=64)
    engine.hooks.append(measured := metrics.Measured(engine, "bundled"))
    for number in range(20):
        engine.add([5 + number] * 100, endless(2))
    engine.requests = Unseen(engine.requests)
    for tokens in (0, 100):
        engine.advance()
        assert f'vllm:prompt_tokens_total{{model_name="bundled"}} {tokens}.0'.encode() in measured.exposition()
    ended = sum(request.finished for _ in range(58) for request in engine.advance())
    assert ended == 20 and not engine.has_unfinished
    assert b'vllm:generation_tokens_total{model_name="bundled"} 40.0' in measured.exposition()


def test_arrival_is_when_the_server_receives_the_request(loaded):
    engine = SteppingEngine(loaded)
    with openai_server("03", loaded, engine=engine) as service, ThreadPoolExecutor() as pool:
        first = pool.submit(service.post, prompt="a", max_tokens=2, ignore_eos=True)
        wait_until(lambda: engine.requests)
        engine.allow(1)
        wait_until(lambda: engine.trace.steps == 1)  # The thread is in its second step, which waits.
        second = pool.submit(service.post, prompt="b", max_tokens=1)
        wait_until(lambda: len(service.thread._open) == 2)
        time.sleep(0.5)
        engine.allow()
        first.result(), second.result()
        assert values_of(service)["time_to_first_token_seconds_sum"] > 0.5


def test_those_of_a_gpu_are_of_the_one_that_torch_means(monkeypatch):
    pynvml = pytest.importorskip("pynvml", reason="needs the package nvidia-ml-py")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    nvml = MagicMock(spec=pynvml, NVMLError=pynvml.NVMLError, __spec__=pynvml.__spec__)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [len(list(metrics.GpuCollector(index).collect())) for index in range(3)] == [4, 4, 0]
    assert nvml.nvmlDeviceGetHandleByIndex.mock_calls == [call(3), call(1)]
