"""What benchmarks send, to a real server as well, and predict: the arithmetic agrees with the model."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from common.bench import cost_model
from common.bench.client import Target, generate_load
from common.bench.settings import Settings
from common.bench.workloads import Job, corpus_jobs, page_prompt
from common.loader import find_checkpoint
from common.loader.config import read_config
from common.model import Transformer
from tests.helpers.serving_stage_03 import engine_module, serving


def test_workloads_are_seeded_and_their_lengths_are_known():
    jobs = corpus_jobs(None, 60, seed=3, most_tokens=200)  # by the bundled tokenizer
    assert jobs[:20] == corpus_jobs(None, 20, seed=3, most_tokens=200) != corpus_jobs(None, 20, seed=4, most_tokens=200)
    lengths = [job.max_tokens for job in jobs]
    assert min(lengths) < 15 and max(lengths) == 200 and len(set(lengths)) > 20
    assert all(job.ignore_eos and isinstance(job.prompt, list) for job in jobs)


def test_no_prefix_cache_takes_prompts_for_each_other():
    loaded = Settings(device="cpu").without_weights()
    prompts = [page_prompt(loaded, 40, f"document {i}") for i in range(30)]
    assert {len(prompt) for prompt in prompts} == {40} and len({tuple(prompt[:16]) for prompt in prompts}) == 30
    assert page_prompt(loaded, 40, "document 3") == prompts[3] and len(page_prompt(loaded, 60_000)) == 60_000
    assert max(page_prompt(replace(loaded, tokenizer=None), 99)) > 1000, "without a tokenizer, any tokens"


@pytest.mark.parametrize("name", [None, "TinyLlama-1.1B"])  # The second has a head of its own.
def test_predictions_agree_with_the_model_and_with_each_other(name):
    config = read_config(find_checkpoint(name, with_weights=False))
    with torch.device("meta"):
        model = Transformer(config)
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    assert cost_model.parameters(config) == matrices

    head = 2 * cost_model.head_parameters(config)
    one_by_one = sum(cost_model.step_flops(config, 1, past) - head for past in range(50))
    assert cost_model.step_flops(config, 50) - head == one_by_one
    step, longer = (cost_model.decode_bytes(config, past, torch.bfloat16) for past in (100, 101))
    assert longer - step == config.kv_bytes_per_token(torch.bfloat16)
    step = config, 7, 100, torch.bfloat16
    assert cost_model.step_floor(*step, 1.0, 1e30) == cost_model.decode_bytes(config, 700, torch.bfloat16)
    assert cost_model.step_floor(*step, 1e30, 1.0) == 7 * cost_model.step_flops(config, 1, 100)


@pytest.mark.parametrize("stream", [True, False])
def test_every_request_to_a_real_server_is_counted_and_failures_for_nothing(loaded, stream):
    jobs = [Job([5, 6], 4, ignore_eos=True)] * 5 + [Job([], 4)]
    with serving(engine_module.Engine(loaded)) as service:
        result = generate_load(service.url, jobs, Target(endpoint="generate", stream=stream), concurrency=3)
    assert [(one.prompt_tokens, one.output_tokens) for one in result.successful] == [(2, 4)] * 5
    assert [one.error for one in result.records if one.error] == [
        "HTTP 400: the prompt is empty: give at least one token"
    ]
    assert result.throughput == 20 / result.seconds and bool(result.values("itl")) == stream
    assert all(0 < one.ttft <= one.e2el and (one.ttft < one.e2el) == stream for one in result.successful)


class ForgetfulServer(BaseHTTPRequestHandler):
    """It closes each connection on which a second request comes, without a word: some servers do so now and then."""

    protocol_version = "HTTP/1.1"
    answered = False

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.answered:
            self.close_connection = True
            return
        self.answered = True
        usage = {"prompt_tokens": 2, "completion_tokens": 1}
        answer = json.dumps({"choices": [{"text": "a", "finish_reason": "stop"}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def test_a_request_is_sent_again_where_the_server_has_closed_a_kept_connection():
    with ThreadingHTTPServer(("127.0.0.1", 0), ForgetfulServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = generate_load(url, [Job([5, 6], 4)] * 5, Target("any", stream=False), concurrency=1)
        server.shutdown()
    assert [one.error for one in result.records] == [None] * 5
