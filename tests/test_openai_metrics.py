"""What a server tells Prometheus, and what its dashboard asks."""

import re

import httpx
from serving_openai import openai_server
from serving_stage_03 import wait_until

from common.serving import metrics
from common.stages import ROOT, load_engine

ENDLESS = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


def post(service, **body) -> None:
    assert httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).status_code == 200


def test_metrics(loaded):
    with openai_server("06", loaded) as service:
        prompt = list(range(100, 140))
        for _ in range(2):
            post(service, prompt=prompt, max_tokens=5, ignore_eos=True, temperature=0)
        service.hang_up_after(ENDLESS)
        wait_until(service.idle)
        text = httpx.get(f"{service.url}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    def value(name: str, labels: str = "") -> float:
        return float(values[f'vllm:{name}{{{labels}model_name="bundled"}}'])

    assert value("prompt_tokens_total") >= 80 and value("generation_tokens_total") >= 10
    assert value("num_requests_running") == value("num_requests_waiting") == 0
    assert value("prefix_cache_hits_total") == 32 and value("prefix_cache_queries_total") >= 80
    assert value("kv_cache_usage_perc") == 0 and value("num_preemptions_total") == 0
    assert float(values['vllm:request_success_total{finished_reason="length",model_name="bundled"}']) == 2
    assert float(values['vllm:request_success_total{finished_reason="abort",model_name="bundled"}']) == 1
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert value(f"{name}_count") == 3
    assert value("inter_token_latency_seconds_count") >= 8


def test_speculation_is_counted(loaded):
    with openai_server("07", loaded, engine=load_engine("07")(loaded, num_draft_tokens=3)) as service:
        post(service, prompt="Once upon a time", max_tokens=40, ignore_eos=True, temperature=0)
        text = httpx.get(f"{service.url}/metrics").text
    names = (
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
    )
    found = re.findall(r'^vllm:(\w+)\{model_name="bundled"\} (\S+)$', text, re.MULTILINE)
    values = {name: float(value) for name, value in found}
    drafts, drafted, accepted = (values[name] for name in names)
    assert 0 < drafts <= drafted and 0 < accepted <= drafted
    # A pass brings what was accepted and one token more, as one chunk; the first token has no gap before it.
    assert values["inter_token_latency_seconds_count"] == values["generation_tokens_total"] - accepted - 1


def test_the_dashboard_asks_for_what_is_measured(loaded):
    dashboard = (ROOT / "common" / "serving" / "monitoring" / "grafana.json").read_text()
    asked = set(re.findall(r"vllm:(\w+)", dashboard))
    counted = {f"{name.removeprefix('vllm:')}_total" for name, _ in metrics.COUNTED.values()}
    with openai_server("06", loaded) as service:
        post(service, prompt="a", max_tokens=2)
        measured = set(re.findall(r"^vllm:(\w+)", httpx.get(f"{service.url}/metrics").text, re.MULTILINE))
    assert asked <= measured | counted, asked - measured - counted
