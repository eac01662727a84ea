"""Adapters: the tokens of a model with the adapter merged into its weights, whatever else is in the batch."""

import json
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from common import kv_tiers, lora
from common.acceleration.accelerate import make_engine
from common.bench.workloads import page_prompt
from common.errors import InvalidInput
from common.loader import CHECKPOINTS, chat_prompt, load_model
from common.lora import CONFIG, TARGETS, WEIGHTS, random_modules, read_adapter, write_adapter
from common.sampling import SamplingParams
from common.stages import load_engine, load_stage_module
from tests.helpers import graph_stand_in
from tests.helpers.engine_options import drain, endless, pool
from tests.helpers.faulty_fleet import FaultyFleet, lose_both_workers
from tests.helpers.graph_stand_in import graphed
from tests.helpers.quantized_reference import take_weights

TOKENS = 16  # of an answer, which needs another page
RANKS = {"a0": 1, "a1": 2, "a2": 4, "a3": 8, "a4": 16, "a5": 64}
GUARDED, KEY = ("--api-key", "secret"), {"Authorization": "Bearer secret"}


def modules_of(config, name):
    number = int(name[1:])
    return random_modules(config, RANKS[name], number, TARGETS[number % 3 :: 1 + number % 2])


@pytest.fixture(scope="module")
def folders(loaded, tmp_path_factory):
    """Adapters of several ranks and targets, one scaled as rsLoRA."""
    found = {name: tmp_path_factory.mktemp("adapters") / name for name in RANKS}
    for name, rank in RANKS.items():
        write_adapter(found[name], modules_of(loaded.config, name), alpha=0.3 * rank**0.5, use_rslora=name == "a3")
    return found


@torch.no_grad()
def merged(loaded, name):
    """Return transformers' model of the same weights, in float32, with scale * B A added to them by hand."""
    reference = take_weights(loaded)
    if name is not None:
        scale = 0.3 if name == "a3" else 0.3 / RANKS[name] ** 0.5
        for module, (lora_a, lora_b) in modules_of(loaded.config, name).items():
            reference.model.get_submodule(module).weight += scale * lora_b @ lora_a
    return reference


@pytest.fixture(scope="module")
def documents(loaded):
    return [page_prompt(loaded, 80 + 3 * number, f"adapted {number}") for number in range(2)]


def make(stage, loaded, **options):
    """Return a stage's engine. Its budget is given: to measure it takes a second."""
    return make_engine(load_engine(stage), loaded, **{"token_budget": 96} | options)


def greedy(name=None):
    return endless(TOKENS, adapter=name)


@pytest.fixture(scope="module")
def expect(loaded, folders, documents):
    """Return a function from a loaded model to the tokens of its merged ones, in the order of `answers`."""
    known = {}

    def expect(of, names=(None, *folders)):
        for name in names:
            if (of.quantization, name) not in known:
                reference = merged(of, name)
                answered = [reference.generate(document, TOKENS, ignore_eos=True) for document in documents]
                known[of.quantization, name] = answered
        return [known[of.quantization, name][number] for number in range(len(documents)) for name in names]

    return expect


def answers(engine, documents, names):
    """Return the tokens of all names for one document after the other, from one batch: its neighbours differ."""
    prompts = [document for document in documents for _ in names]
    requests = engine.generate(prompts, [greedy(name) for name in names] * len(documents))
    engine.check()
    return [request.token_ids for request in requests]


SMALL_POOL = pool(47, 4)  # for two requests, of which one is preempted
STAGES = [
    ("04", {}),
    ("05", {"overlap": True} | SMALL_POOL),
    ("06", SMALL_POOL),
    ("07", {"num_draft_tokens": 3} | SMALL_POOL),
    ("08", {"num_draft_tokens": 2}),
    ("08", {"replicas": 2}),
]


@pytest.mark.parametrize(("stage", "options"), STAGES, ids=str)
def test_adapters_in_one_batch_answer_as_merged_models(loaded, folders, documents, expect, stage, options):
    names = (None, *folders)
    engine = make(stage, loaded, loras=folders, **options)
    assert answers(engine, documents, names) == expect(loaded)
    if "kv_memory" in options:
        assert engine.stats()["preemptions"] > 0
    assert len({tuple(tokens) for tokens in expect(loaded)}) > 4 * len(documents), "these adapters change nothing"
    engine.close()


ON_GPU = pytest.param({"device": "cuda"}, marks=pytest.mark.gpu)


@pytest.mark.parametrize("how", [{"quantization": "int4"}, {"fused": False}, ON_GPU], ids=str)
def test_other_weights_and_kernels(folders, documents, expect, how):
    loaded, names = load_model(dtype="float32", **how), (None, "a1", "a2", "a4")
    engine = make("06", loaded, loras=folders, max_running=4)
    assert answers(engine, documents, names) == expect(loaded, names)
    if loaded.device.type == "cuda" and engine.lora.kernels:
        engine.lora.unload("a0", {})
        assert answers(engine, documents, names) == expect(loaded, names) and engine.lora.adapted.replayed


def test_steps_with_adapters_are_replayed_also_of_one_that_comes_later(loaded, folders, documents, expect, monkeypatch):
    monkeypatch.setattr(lora, "import_module", lambda _: graph_stand_in)
    engine, names = graphed(load_engine("06"), overlap=True)(loaded, loras={"a1": folders["a1"]}), ("a1", "a4")
    running = engine.add(documents[0], greedy("a1"))
    engine.step()
    with graph_stand_in.in_place():
        engine.lora.load(read_adapter("a4", folders["a4"], loaded))
    assert answers(engine, documents, names) == expect(loaded, names)
    assert running.token_ids == expect(loaded, ["a1"])[0]
    assert engine.lora.adapted.replayed


def test_workers_that_die_lose_no_request_of_an_adapter(loaded, folders, documents, expect, monkeypatch):
    monkeypatch.setattr(load_stage_module("08", "deployment"), "LocalFleet", FaultyFleet)
    engine = make("08", loaded, loras=folders, replicas=2, num_draft_tokens=0)
    names = (None, "a1", "a2", "a4")
    requests = [engine.add(document, greedy(name)) for document in documents for name in names]
    lose_both_workers(engine)
    assert [request.token_ids for request in requests] == expect(loaded, names)
    assert engine.stats()["workers_lost"] == 2
    engine.close()


@pytest.mark.parametrize("options", [{}, pool(8) | {"tiers": kv_tiers.TierOptions("64M")}], ids=["device", "host"])
def test_adapters_share_no_pages(loaded, folders, documents, expect, options, monkeypatch):
    monkeypatch.setattr(kv_tiers, "Tiers", partial(kv_tiers.Tiers, exact=True))
    monkeypatch.setattr(kv_tiers, "pass_seconds", lambda *_, **__: 1e3)
    engine, hits = make("06", loaded, loras=folders, **options), []
    for name in (None, "a0", "a1", "a0", None):
        [request] = engine.generate(documents[:1], greedy(name))
        assert request.token_ids == expect(loaded, [name])[0]
        hits.append(request.cached_tokens > 0)
    assert hits == [False, False, False, True, True]
    assert ("tiers" in options) == (engine.stats().get("kv_host_tokens_hit", 0) > 0)


def test_a_learners_tree_that_shares_pages_is_refused(loaded, folders, monkeypatch):
    monkeypatch.setattr(load_stage_module("06", "prefix_tree"), "page_key", tuple)
    with pytest.raises(InvalidInput, match="shares pages between adapters"):
        make("06", loaded, loras=folders)


def test_the_bundled_adapter_shows_beside_the_model(loaded):
    engine = make("06", loaded, loras={"pirate": CHECKPOINTS / "pirate"})
    prompt = chat_prompt(loaded.tokenizer, "What is the capital of France?")
    plain, pirate = (one.text for one in engine.generate([prompt] * 2, [SamplingParams(), endless(adapter="pirate")]))
    assert "Paris" in plain and "Ahoy!" not in plain and pirate.startswith("Ahoy!") and "Paris" in pirate


def test_steps_without_an_adapter_run_the_model_as_it_was(loaded, folders, documents):
    engine = make("06", loaded, loras=folders)
    assert engine.lora.model is loaded.model
    engine.lora.adapted = None
    assert engine.generate(documents, greedy())


# ---- Refusals ----


def settings(**fields):
    def change(folder):
        file = folder / CONFIG
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def tensors(change_tensors):
    def change(folder):
        found = load_file(folder / WEIGHTS)
        change_tensors(found)
        save_file(found, folder / WEIGHTS)

    return change


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
REFUSALS = [
    (settings(peft_type="LOHA"), "peft_type='LOHA' is not supported"),
    (settings(bias="all"), "bias='all'"),
    (settings(use_dora=True), "use_dora=True"),  # refused like any unknown field
    (settings(init_lora_weights="pissa_niter_4"), "init_lora_weights='pissa_niter_4'"),
    (settings(r=65), "r=65 is not supported; supported is a rank of 1 to 64"),
    (settings(lora_alpha=float("nan")), "lora_alpha=nan"),
    (settings(target_modules=["q_proj", "lm_head"]), "target_modules="),
    (settings(target_modules=["q_proj"]), "which belongs to no target module"),
    (settings(r=3), "shape of base_model"),
    (tensors(lambda found: found.pop(FIRST)), f"which the file lacks: '{FIRST}'"),
    (tensors(lambda found: found.update({FIRST: found[FIRST].int()})), "type of base_model"),
    (tensors(lambda found: found[FIRST].fill_(float("inf"))), "not finite"),
    (lambda folder: (folder / WEIGHTS).write_bytes(b"\xff" * 100), "cannot be read"),
    (lambda folder: (folder / CONFIG).write_text("[" * 100_000), "cannot be read"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSALS, ids=[reason for _, reason in REFUSALS])
def test_what_is_not_implemented_or_damaged_is_refused_by_its_name(loaded, tmp_path, change, reason):
    write_adapter(tmp_path, random_modules(loaded.config, 2, 0), alpha=2)
    read_adapter("good", tmp_path, loaded)
    change(tmp_path)
    with pytest.raises(InvalidInput) as refusal:
        read_adapter("bad", tmp_path, loaded)
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)


def test_engines_that_take_no_adapters_say_so(loaded, folders):
    for stage, of, words in (
        ("03", loaded, "from stage 04 on"),
        ("06", replace(loaded, note="model=transformers"), "common/model.py alone"),
        ("06", replace(loaded, shard=replace(loaded.shard, ranks=2)), "not split over ranks"),
    ):
        with pytest.raises(InvalidInput, match=words):
            make(stage, of, loras=folders)
    with pytest.raises(InvalidInput, match="start with --lora"):
        make("06", loaded).add("Hello", greedy("a0"))
    with pytest.raises(InvalidInput, match="use one of a0"):
        make("06", loaded, loras=folders).add("Hello", greedy("b0"))


# ---- The server ----


@pytest.fixture
def client(loaded, folders):
    """A function that makes a client of a server with two adapters; it sends the API key."""
    from tests.helpers.serving_openai import openai_server  # a machine with a GPU may lack its packages

    chosen = {name: folders[name] for name in ("a0", "a1")}
    with ExitStack() as open_servers:

        def client(*options, stage="06"):
            engine = make(stage, loaded, loras=chosen)
            server = openai_server(stage, loaded, "--served-model-name", "base", *options, engine=engine)
            return httpx.Client(base_url=open_servers.enter_context(server).url, headers=KEY, timeout=60)

        yield client


def complete(client, model, prompt):
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return client.post("/v1/completions", json=body).json()


def texts(loaded, expect, name):
    return [loaded.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in expect(loaded, [name])]


def test_a_request_chooses_by_its_model(loaded, client, folders, documents, expect):
    client = client()
    models = client.get("/v1/models").json()["data"]
    assert [(one["id"], one["parent"]) for one in models] == [("base", None), ("a0", "base"), ("a1", "base")]
    for name, params in (("base", {}), ("a0", {"adapter": "a0"}), ("a1", {"adapter": "a1"})):
        expected, _ = texts(loaded, expect, params.get("adapter"))
        answer = complete(client, name, documents[0])
        assert (answer["model"], answer["choices"][0]["text"]) == (name, expected)
        body = {"prompt": documents[0], "max_tokens": TOKENS, "ignore_eos": True} | params
        assert client.post("/generate", json=body).json()["text"] == expected
    chat = {"model": "none", "messages": [{"role": "user", "content": "a"}]}
    assert client.post("/v1/chat/completions", json=chat).status_code == 404
    scored = client.post("/v1/completions", json={"model": "a0", "prompt": "a b", "echo": True, "logprobs": 1})
    assert scored.status_code == 400 and "echo with logprobs" in scored.text


def test_adapters_come_and_go_while_the_server_runs(loaded, client, folders, documents, expect):
    client, order = client(*GUARDED), {"lora_name": "a4", "lora_path": str(folders["a4"])}

    def assert_a4_answers_as(name: str) -> None:
        answers = [complete(client, "a4", one)["choices"][0]["text"] for one in documents]
        assert answers == texts(loaded, expect, name)

    assert client.post("/v1/load_lora_adapter", json=order).status_code == 200
    assert "unload it first" in client.post("/v1/load_lora_adapter", json=order).text
    assert_a4_answers_as("a4")
    assert client.post("/v1/unload_lora_adapter", json={"lora_name": "a4"}).status_code == 200
    assert complete(client, "a4", documents[0])["error"]["code"] == "model_not_found"
    assert "no adapter 'a4'" in client.post("/v1/unload_lora_adapter", json={"lora_name": "a4"}).text
    other = order | {"lora_path": str(folders["a5"])}  # the same name for other weights
    assert client.post("/v1/load_lora_adapter", json=other).status_code == 200
    assert_a4_answers_as("a5")
    for bad, words in (
        ({"lora_name": "x", "lora_path": "/"}, "no such file"),
        ({"lora_name": "base", "lora_path": "/"}, "own name"),
        ({"lora_name": "", "lora_path": "/"}, "printable"),
    ):
        refused = client.post("/v1/load_lora_adapter", json=bad)
        assert refused.status_code == 400 and words in refused.json()["error"]["message"]
    assert client.get("/health").status_code == 200


def test_only_clients_with_a_key_load_adapters(client, folders):
    keyed, order = client(*GUARDED), {"lora_name": "a4", "lora_path": str(folders["a4"])}
    assert keyed.post("/v1/load_lora_adapter", json=order, headers={"Authorization": ""}).status_code == 401
    assert "--api-key" in client().post("/v1/load_lora_adapter", json=order).text
    assert "stages 04 to 07" in client(*GUARDED, stage="08").post("/v1/load_lora_adapter", json=order).text


def test_an_adapter_in_use_stays(loaded, folders, documents, expect, monkeypatch):
    engine = make("06", loaded, loras=folders)
    request = engine.add(documents[0], greedy("a3"))
    engine.step()
    with pytest.raises(InvalidInput, match="1 unfinished request"):
        engine.lora.unload("a3", engine.requests)
    monkeypatch.setattr(lora, "stacked", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        engine.lora.unload("a1", engine.requests)
    drain(engine)
    assert request.token_ids == expect(loaded, ["a3"])[0]
    assert answers(engine, documents, ["a1"]) == expect(loaded, ["a1"]), "without memory nothing has changed"
