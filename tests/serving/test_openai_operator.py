"""What the operator sees and sets: logged refusals, log levels, and a checkpoint's sampling defaults."""

import logging
from dataclasses import replace

import pytest

from common.loader.config import read_sampling_defaults
from tests.helpers.serving_openai import openai_server


def test_a_refused_request_is_logged_with_its_reason(loaded, caplog):
    """Without a client's control characters. And every request, by uvicorn, with `--log-level info` alone."""
    access, errors = (logging.getLogger(f"uvicorn.{name}") for name in ("access", "error"))
    with openai_server("03", loaded):
        assert not access.isEnabledFor(logging.INFO)
    with openai_server("03", loaded, "--log-level", "info", "--served-model-name", "gpt") as service:
        assert access.isEnabledFor(logging.INFO)
        errors.addHandler(caplog.handler)  # uvicorn's own handlers write only to stderr.
        service.post("/generate", prompt="a", temperature=-1)
        service.post(model="other", prompt="a")
        service.get("/nothing%1b[31m")
        errors.removeHandler(caplog.handler)
    lines = [f"{record.levelname} {record.getMessage()}" for record in caplog.records if ": 4" in record.getMessage()]
    reasons = (
        "INFO POST /generate: 400, temperature must be a finite number of at least 0, not -1",
        "INFO POST /v1/completions: 404, the model 'other' does not exist: use 'gpt'",
        "INFO GET /nothing\ufffd[31m: 404, there is no '/nothing",
    )
    for line, reason in zip(lines, reasons, strict=True):
        assert line.startswith(reason)


def test_sampling_defaults_come_from_generation_config(tmp_path):
    written = '{"temperature": 0.6, "top_k": 20, "top_p": null, "do_sample": true}'
    (tmp_path / "generation_config.json").write_text(written)
    assert read_sampling_defaults(tmp_path) == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize("options", [[], ["--no-generation-config"]])
def test_the_server_and_each_client_may_turn_them_off(loaded, options):
    with openai_server("03", replace(loaded, sampling_defaults={"top_k": 1}), *options) as service:
        for fields, varied in (({}, bool(options)), ({"top_k": -1}, True)):
            asked = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 5} | fields
            texts = {service.post(**asked, seed=i).json()["choices"][0]["text"] for i in range(4)}
            assert (len(texts) > 1) == varied
