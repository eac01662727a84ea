"""Metrics for Prometheus, under vLLM's names, so that dashboards made for vLLM show this server too.

`Measured` is a hook of the engine, and sees every request arrive, gain tokens and end. Gauges come from the engine's
`stats()` after its last step.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import torch
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from common.engine import BaseEngine, Hook
from common.request import FinishReason, Request
from common.toml import read_toml

TABLES = read_toml(Path(__file__).with_suffix(".toml"))
COUNTED, COUNTERS, HISTOGRAMS = (TABLES[kind] for kind in ("counted", "counters", "histograms"))


class Measured(Hook, Collector):
    """The metrics of an engine."""

    def __init__(self, engine: BaseEngine, model_name: str):
        self._engine, self.model_name = engine, model_name
        self._steps = 0  # whose records the metrics include
        self._waiting: dict[str, Request] = {}  # not yet in any step
        self._scheduled: dict[str, float] = {}  # for each running request, when its first step began
        self._counted: dict[str, int] = {}  # for each request, output tokens that the metrics include
        self._finished: list[Request] = []  # since the last step
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # processor time and memory of this process
        self.last_stats = engine.stats()  # after the last step: the engine itself may be in the middle of one
        self._lost = dict.fromkeys(COUNTED, 0.0)  # what each count has lost: a worker's counts end with it (stage 08)
        self._registry.register(self)
        if engine.device.type == "cuda":
            self._registry.register(GpuCollector(engine.device.index or 0))

        labels = {"labelnames": ["model_name"], "registry": self._registry}
        self._counters = {
            name: Counter(f"vllm:{name}", meaning, **labels).labels(model_name) for name, meaning in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"vllm:{name}", meaning, buckets=TABLES["buckets"][kind], **labels).labels(model_name)
            for name, (meaning, kind) in HISTOGRAMS.items()
        }
        self._ended = Counter(
            "vllm:request_success", "Requests by how they ended", ["model_name", "finished_reason"],
            registry=self._registry,
        )  # fmt: skip
        for reason in get_args(FinishReason):  # a rate needs a zero before the first one
            self._ended.labels(model_name, reason)

    def on_add(self, request: Request) -> None:
        self._waiting[request.request_id] = request

    def on_step(self, changed: list[Request]) -> list[Request]:
        trace = self._engine.trace
        for record in trace.since(self._steps):  # in stage 08, steps of several workers
            for work in record.works:
                if request := self._waiting.pop(work.request_id, None):
                    self._scheduled[request.request_id] = record.start
                    self._observe(request_queue_time_seconds=record.start - request.timings.arrival)
        self._steps = trace.steps
        for request in changed:
            self._observe_tokens(request)
        for request in self._finished:
            self._observe_end(request)
        self._finished = []
        return changed

    def on_finish(self, request: Request) -> None:
        self._finished.append(request)  # Its step has no record yet.

    def on_stats(self, stats: dict[str, float]) -> None:
        for key in COUNTED:
            self._lost[key] += max(0, self.last_stats.get(key, 0) - stats.get(key, 0))
        self.last_stats = stats

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges and counters that the engine keeps itself, for the registry."""
        stats = self.last_stats
        running = stats.get("running", min(stats["unfinished"], 1))  # stages 01 to 03 run one request at a time
        gauges = {
            "vllm:num_requests_running": (running, "Requests in the running batch"),
            "vllm:num_requests_waiting": (stats.get("waiting", stats["unfinished"] - running), "Requests that wait"),
        }
        if capacity := stats.get("kv_tokens_capacity"):
            share = stats["kv_tokens_reserved"] / capacity
            gauges["vllm:kv_cache_usage_perc"] = (share, "Share of the K/V memory that is in use, from 0 to 1")
        for role in ("replica", "prefill", "decode"):
            if (up := stats.get(f"{role}_workers_up")) is not None:
                gauges[f"fleet:{role}_workers_up"] = (up, f"Workers with the role {role} that are up")
        counters = {  # they must never fall: Prometheus takes that for a restart of the server
            metric: (stats[key] + self._lost[key], meaning)
            for key, (metric, meaning) in COUNTED.items()
            if key in stats
        }
        yield from families(GaugeMetricFamily, gauges, "model_name", self.model_name)
        yield from families(CounterMetricFamily, counters, "model_name", self.model_name)

    def _observe_tokens(self, request: Request) -> None:
        moments, counted = request.timings.tokens, self._counted.get(request.request_id, 0)
        self._counted[request.request_id] = len(moments)
        self._counters["generation_tokens"].inc(len(moments) - counted)
        if len(moments) == counted:
            return
        if counted == 0:
            self._counters["prompt_tokens"].inc(len(request.prompt_token_ids))
            self._observe(time_to_first_token_seconds=moments[0] - request.timings.arrival)
            return
        gap = moments[counted] - moments[counted - 1]  # the tokens of one step are one chunk
        self._observe(inter_token_latency_seconds=gap, time_per_output_token_seconds=gap)

    def _observe(self, **values: float) -> None:
        """Add a value to each of these histograms."""
        for name, value in values.items():
            self._histograms[name].observe(max(0.0, value))

    def _observe_end(self, request: Request) -> None:
        self._waiting.pop(request.request_id, None)
        self._counted.pop(request.request_id, None)
        if not request.max_tokens:  # its prompt was scored, and it generates nothing
            return
        self._ended.labels(self.model_name, request.finish_reason).inc()
        timings, scheduled = request.timings, self._scheduled.pop(request.request_id, None)
        if request.finish_reason in ("abort", "error") or not timings.tokens:
            return  # the time at which a client gave up is not the server's latency
        first, last, answered = timings.tokens[0], timings.tokens[-1], len(request.token_ids)
        self._observe(
            e2e_request_latency_seconds=timings.finished - timings.arrival,
            request_decode_time_seconds=last - first,
            request_prompt_tokens=len(request.prompt_token_ids),
            request_generation_tokens=answered,
            request_max_num_generation_tokens=answered,
            request_params_max_tokens=request.max_tokens,
        )
        if scheduled is not None:
            self._observe(
                request_prefill_time_seconds=first - scheduled, request_inference_time_seconds=last - scheduled
            )
        if answered > 1:
            self._observe(request_time_per_output_token_seconds=timings.time_per_output_token)


class GpuCollector(Collector):
    """Collect the metrics that NVML has of one device; none without NVML, or if it fails."""

    def __init__(self, index: int):
        self.index = index

    def collect(self) -> Iterable[Metric]:
        if find_spec("pynvml") is None:
            return
        import pynvml

        try:  # NVML, since torch would take a context on the GPU, also in stage 08's router
            pynvml.nvmlInit()
            # NVML counts all GPUs of the machine, torch those that CUDA_VISIBLE_DEVICES names.
            device = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda._get_nvml_device_index(self.index))
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            values = {
                "gpu_utilization_percent": (pynvml.nvmlDeviceGetUtilizationRates(device).gpu, "Time with a kernel"),
                "gpu_memory_used_bytes": (memory.used, "Memory in use"),
                "gpu_memory_total_bytes": (memory.total, "Total memory"),
                "gpu_power_watts": (pynvml.nvmlDeviceGetPowerUsage(device) / 1e3, "Power drawn"),
            }
        except (pynvml.NVMLError, RuntimeError):  # torch's RuntimeError: a part of a GPU (MIG)
            return
        yield from families(GaugeMetricFamily, values, "gpu", str(self.index))


def families(kind: type, values: dict[str, tuple[float, str]], label: str, of: str) -> Iterable[Metric]:
    """Yield a metric for each name with its value and meaning; all have this label."""
    for name, (value, meaning) in values.items():
        family = kind(name, meaning, labels=[label])
        family.add_metric([of], value)
        yield family
