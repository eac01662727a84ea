"""What all stages share: the command line, what their engines have from common/engine.py, and rounded numbers."""

import json
import re
import runpy
import socket
import sys
from dataclasses import replace
from functools import cache

import pytest

from common.cli import check_address
from common.errors import InvalidInput
from common.loader import load_model
from common.request import Request, Timings
from common.sampling import SamplingParams
from common.serving.options import url_of
from common.stages import ROOT, load_engine, load_stage_module, stage_folder, stage_folders
from tests.helpers.engine_options import GREEDY, MAX_TOKENS, drain, endless
from tests.helpers.quantized_reference import take_weights
from tests.helpers.rounded_reference import round_keys_and_values
from tests.helpers.small_models import LLAMA_FILE

STAGES = [folder.name for folder in stage_folders()]
STORY = "Once upon a time, there was"
load_model_once = cache(load_model)


# ---- The command line ----


def run_main(monkeypatch, capsys, stage: str, *arguments: str) -> tuple[int | str | None, str, str]:
    """main.py in this process: (what it would exit with, stdout, stderr)."""
    main = ROOT / stage / "main.py"
    monkeypatch.setattr(sys, "argv", [str(main), *arguments])
    status: int | str | None = 0
    try:
        runpy.run_path(str(main), run_name="__main__")
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


@pytest.fixture(scope="module")
def expected(loaded) -> Request:
    return load_engine("02")(loaded).generate([STORY], endless(5))[0]


@pytest.mark.parametrize("stage", STAGES)
def test_a_prompt_and_its_figures(monkeypatch, capsys, expected, tmp_path, stage):
    monkeypatch.setattr("common.cli.load_model", load_model_once)
    arguments = ["--prompt", STORY, "--max-tokens", "5", "--ignore-eos", "--show-stats", "--device", "cpu"]
    arguments += ["--token-budget", "64"] if stage > "05" else []  # stage 04 measures what this machine allows
    trace = tmp_path / "trace.json"
    status, output, errors = run_main(monkeypatch, capsys, stage, *arguments, "--trace", str(trace))
    assert status == 0
    assert re.match(r"device=cpu \(.+\), dtype=float32 \(.+\)\n", errors)
    *text, figures, counters = output.removesuffix("\n").split("\n")
    assert "\n".join(text) == expected.text
    prompt_tokens = len(expected.prompt_token_ids)
    assert re.fullmatch(
        rf"prompt_tokens={prompt_tokens} generated_tokens=5 elapsed_seconds=\d+\.\d+ tokens_per_second=\d+\.\d+ "
        r"device=cpu dtype=float32",
        figures,
    )
    names = [counter.partition("=")[0] for counter in counters.split()]
    taught = {"05": "preemptions", "06": "prefix_tokens_hit", "07": "accepted_tokens", "08": "handoffs"}
    assert names[0] == "steps" and taught.get(stage[:2], "steps") in names
    assert not any(name.startswith("kv_") for name in names), "a request that has ended holds no memory"
    assert trace.stat().st_size > 0


def test_stop_strings_and_seeds_on_the_command_line(monkeypatch, capsys, loaded):
    [full] = load_engine("02")(loaded).generate([STORY], endless(16))

    def output(*options: str) -> str:
        arguments = ["--prompt", STORY, "--max-tokens", "16", "--ignore-eos", "--device", "cpu", *options]
        return run_main(monkeypatch, capsys, "02_kv_cache", *arguments)[1]

    stop = full.text[10:14]
    assert output("--stop", "no!", "--stop", stop) == full.text[: full.text.index(stop)] + "\n"
    first, second = (output("--temperature", "1.5", "--seed", "5") for _ in range(2))
    assert first == second != full.text + "\n"


def test_a_fault_in_the_code_keeps_its_traceback(monkeypatch, capsys):
    monkeypatch.setattr(load_engine("02"), "schedule", lambda self: dict(zip([1], [], strict=True)))
    with pytest.raises(ValueError, match="shorter"):
        run_main(monkeypatch, capsys, "02_kv_cache", "--prompt", "a", "--device", "cpu")


def test_k_and_v_in_8_bits_leave_room_for_more_tokens(monkeypatch, capsys, expected):
    arguments = ["--prompt", STORY, "--max-tokens", "5", "--ignore-eos", "--device", "cpu", "--kv-dtype", "int8"]
    arguments += ["--kv-memory", "4M", "--token-budget", "64"]
    status, output, errors = run_main(monkeypatch, capsys, "05_paged_attention", *arguments)
    assert (status, output) == (0, f"{expected.text}\n")
    [tokens] = re.findall(r"kv_dtype=int8 \(room for ([\d,]+) tokens, 3.76 times as many as in float32\)", errors)
    assert int(tokens.replace(",", "")) == 2**22 // (16 * 2176) * 16


def test_what_cannot_keep_8_bits_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="slots hold K and V in the model's type: for 8 bits use stage 05"):
        load_engine("04")(load_model_once(device="cpu", kv_dtype="int8"))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_FILE | {"hidden_size": 60, "head_dim": 10}))
    says = {"int8": "4 divides, and this model's is 10", "fp8": "'fp8' is unknown: use auto or int8"}
    for kv_dtype, said in says.items():
        with pytest.raises(InvalidInput, match=said):
            load_model(tmp_path, device="cpu", kv_dtype=kv_dtype)


def test_an_address_may_be_one_of_ipv6():
    for host in ("::1", "localhost", "0.0.0.0"):
        assert check_address(host, 0) == host  # any port: others might take one that was free
    assert url_of("::1", 80) == "http://[::1]:80"
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as taken,
        pytest.raises(InvalidInput, match=" in use"),
    ):
        check_address("::1", taken.getsockname()[1])


# ---- Finding stages ----


def test_a_stage_is_found_by_number_name_or_path(tmp_path):
    for name in ("2", "02", "02_kv_cache", ROOT / "02_kv_cache"):
        assert stage_folder(name) == ROOT / "02_kv_cache"
    assert load_engine("2") is load_stage_module("02_kv_cache", "engine").Engine
    with pytest.raises(ValueError, match="no stage '99'.*01_naive, 02_kv_cache"):
        load_engine("99")
    impostor = tmp_path / "02_kv_cache"
    impostor.mkdir()
    (impostor / "engine.py").write_text("Engine = None\n")
    with pytest.raises(ValueError, match="two folders are named '02_kv_cache'"):
        load_engine(impostor)


# ---- Rounded numbers ----


@pytest.mark.parametrize("how", [{"quantization": "int8"}, {"quantization": "int4"}, {"kv_dtype": "int8"}], ids=str)
def test_rounded_numbers_give_the_tokens_of_a_reference_that_rounds_them(prompts, how):
    """In batches of every size: products of few and of many tokens differ."""
    loaded = load_model(device="cpu", dtype="float32", **how)
    reference = take_weights(loaded)
    if loaded.config.kv_int8:
        round_keys_and_values(reference.model)
    expected = [reference.generate(prompt, MAX_TOKENS) for prompt in prompts[:8]]
    for stage, options in {"06": {}, "08": {"num_draft_tokens": 2}}.items():
        engine = load_engine(stage)(loaded, **options)
        assert [request.token_ids for request in engine.generate(prompts[:8], GREEDY)] == expected


# ---- Requests ----

BAD = [  # prompt, max_tokens, what the error says
    ("", 8, "empty"),
    ([], 8, "empty"),
    ("\ud800", 8, "surrogate"),
    ([4096], 8, "vocabulary"),
    ([5, -1], 8, "vocabulary"),
    ([1.5], 8, "integer"),
    ([True], 8, "integer"),
    ([7] * 60, 5, "context"),
    ([7] * 64, None, "context"),
]


def test_bad_requests_are_refused_and_nothing_else_suffers(loaded):
    engine = load_engine("02")(replace(loaded, config=replace(loaded.config, context_length=64)))
    good = engine.add([5, 6], endless(4))
    for prompt, max_tokens, says in BAD:
        with pytest.raises(ValueError, match=says):
            engine.generate([[7], prompt], SamplingParams(max_tokens=max_tokens))
        assert list(engine.requests) == [good.request_id]
    with pytest.raises(ValueError, match="2 prompts came with 1"):
        engine.generate([[5], [6]], [endless(4)])
    drain(engine)
    assert len(good.token_ids) == 4


def test_an_id_in_use_is_refused_and_never_chosen(loaded):
    engine = load_engine("02")(loaded)
    for request_id in ("one", "request-0"):
        engine.add(STORY, GREEDY, request_id)
        with pytest.raises(ValueError, match=f"'{request_id}'"):
            engine.add(STORY, GREEDY, request_id)
    assert engine.add(STORY, GREEDY).request_id not in ("one", "request-0")


def test_timings():
    timings = Timings(10.0, [12.0, 13.0, 16.0], 16.5)
    assert (timings.time_to_first_token, timings.time_per_output_token, timings.end_to_end_latency) == (2.0, 2.0, 6.5)
    assert Timings(10.0, [12.0]).time_per_output_token is None


def test_a_request_ends_for_the_first_reason_that_holds(loaded):
    engine, [eos, *_] = load_engine("02")(loaded), loaded.eos_token_ids
    turtle, *_ = loaded.tokenizer("🐢")["input_ids"]
    reasons = [
        (eos, {}, ("stop", None, "")),
        (eos, {"ignore_eos": True}, ("length", None, "")),
        (eos, {"ignore_eos": True, "stop_token_ids": [eos]}, ("stop", eos, "")),
        (turtle, {}, ("length", None, "\ufffd")),  # the last character stays incomplete
        (turtle, {"stop": "\ufffd"}, ("stop", "\ufffd", "")),
    ]
    for token_id, params, ending in reasons:
        request = engine.add("a", SamplingParams(max_tokens=1, **params))
        request.append(token_id)
        assert (request.finish_reason, request.stop_reason, request.text) == ending
