"""The metrics for Prometheus, and the queries of the dashboard."""

import re
import sys
import time
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest

from common.serving import metrics
from common.stages import ROOT, load_engine
from tests.helpers.serving_openai import ENDLESS, openai_server
from tests.helpers.serving_stage_03 import wait_until


def values_of(service) -> dict[str, float]:
    """Return what the server shows under vLLM's names, buckets left out; for a reason, the name ends with it."""
    pattern = r'^vllm:(\w+)\{(?:finished_reason="(\w+)",)?model_name="bundled"\} (\S+)$'
    found = re.findall(pattern, service.get("/metrics").text, re.MULTILINE)
    return {f"{name} {reason}".strip(): float(value) for name, reason, value in found}


@pytest.mark.parametrize("options", [[], ["--api-process"]])
def test_metrics(loaded, options):
    with openai_server("06", loaded, *options) as service:
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
    assert values["prefix_cache_queries_total"] >= 80 and values["generation_tokens_total"] > 10
    parts = (values[f"request_{part}_time_seconds_sum"] for part in ("prefill", "decode"))
    assert sum(parts) == pytest.approx(values["request_inference_time_seconds_sum"])
    gaps = values["inter_token_latency_seconds_count"]  # Reports of another process may arrive together.
    assert values["time_per_output_token_seconds_count"] == gaps >= (2 if options else 8)
    counted = {f"{name.removeprefix('vllm:')}_total" for name, _ in metrics.COUNTED.values()}
    buckets = {f"{name}_bucket" for name in metrics.HISTOGRAMS}
    asked = set(re.findall(r"vllm:(\w+)", (ROOT / "common" / "serving" / "monitoring" / "grafana.json").read_text()))
    names = {name.split()[0] for name in values}
    assert asked and asked <= names | counted | buckets, "of the dashboard"


def test_speculation_is_counted(loaded):
    with openai_server("07", loaded, engine=load_engine("07")(loaded, num_draft_tokens=3)) as service:
        service.post(prompt="Once upon a time", max_tokens=40, ignore_eos=True, temperature=0)
        wait_until(service.idle)  # the answer may arrive before the figures of its last step
        values = values_of(service)
    names = ("drafts", "draft_tokens", "accepted_tokens")
    drafts, drafted, accepted = (values[f"spec_decode_num_{name}_total"] for name in names)
    assert 0 < drafts <= drafted and 0 < accepted <= drafted
    # A pass emits the accepted tokens and one more, as one chunk; the first token has no gap before it.
    assert values["inter_token_latency_seconds_count"] == values["generation_tokens_total"] - accepted - 1 > 0


def test_counters_keep_what_a_lost_worker_had_counted(loaded):
    measured = metrics.Measured(load_engine("06")(loaded), "bundled")
    for hits, shown in ((50, 50), (20, 50), (30, 60)):
        measured.on_stats(measured.last_stats | {"prefix_tokens_hit": hits})
        assert f'vllm:prefix_cache_hits_total{{model_name="bundled"}} {shown}.0'.encode() in measured.exposition()


def test_arrival_is_when_the_server_receives_the_request(loaded, monkeypatch):
    earlier = SimpleNamespace(perf_counter=lambda: time.perf_counter() - 100, monotonic=time.monotonic)
    monkeypatch.setattr("common.serving.limits.time", earlier)
    with openai_server("03", loaded) as service:
        service.post(prompt="a", max_tokens=1)
        assert values_of(service)["time_to_first_token_seconds_sum"] > 100


def test_those_of_a_gpu_are_of_the_one_that_torch_means(monkeypatch):
    pynvml = pytest.importorskip("pynvml", reason="needs the package nvidia-ml-py")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    nvml = MagicMock(spec=pynvml, NVMLError=pynvml.NVMLError, __spec__=pynvml.__spec__)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [len(list(metrics.GpuCollector(index).collect())) for index in range(3)] == [4, 4, 0]
    assert nvml.nvmlDeviceGetHandleByIndex.mock_calls == [call(3), call(1)]
