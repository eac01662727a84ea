"""Short memory: answers grow as long as the memory allows, and running out of it is reported in one sentence."""

import sys

import pytest
import torch

from common import cli
from common.stages import ROOT, load_engine
from tests.helpers.engine_options import endless
from tests.helpers.serving_openai import openai_server

PAGED = {"05": {}, "06": {}, "07": {"num_draft_tokens": 2}}


@pytest.mark.parametrize("stage", PAGED)
def test_without_max_tokens_an_answer_may_fill_the_pool(loaded, stage):
    engine = load_engine(stage)(loaded, kv_memory="1M", **PAGED[stage])
    assert engine.max_model_len < loaded.config.context_length
    params = endless(None)
    [request] = engine.generate([[5] * 20], params)
    assert (request.num_tokens, request.finish_reason) == (engine.max_model_len, "length")
    with pytest.raises(ValueError, match="--kv-memory"):
        engine.add([5] * engine.max_model_len, params)


def test_a_plain_chat_is_answered_with_any_pool(loaded):
    engine = load_engine("06")(loaded, kv_memory="1M")
    with openai_server("06", loaded, engine=engine) as service:
        messages = [{"role": "user", "content": "What is 2+2?"}]
        assert service.post("/v1/chat/completions", messages=messages).status_code == 200
        [model] = service.get("/v1/models").json()["data"]
        for found in (model, service.post("/tokenize", prompt="a").json()):
            assert found["max_model_len"] == engine.max_model_len


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 150.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory_is_reported_in_one_sentence(error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli, "build_engine", fail)
    monkeypatch.setattr(sys, "argv", ["main.py", "--prompt", "a", "--device", "cpu"])
    with pytest.raises(SystemExit, match="^error: .+ is out of memory: give a smaller .+"):
        cli.run_stage(ROOT / "02_kv_cache", "")
