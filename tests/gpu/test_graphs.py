"""Decode from graphs, on the CPU with a stand-in for capture and replay (graph_stand_in.py), and on a GPU for real."""

from dataclasses import replace

import pytest
import torch

from common import pass_times
from common.acceleration.accelerate import make_engine
from common.acceleration.graphs import GraphedModel
from common.stages import load_engine
from tests.helpers.engine_options import endless
from tests.helpers.graph_stand_in import graphed

COUNT = 12  # tokens: few, since a replay of the stand-in takes longer than a step
GREEDY = endless(COUNT)


@pytest.mark.parametrize(
    ("stage", "options"),
    [("06", {}), ("07", {"draft": "draft", "num_draft_tokens": 2, "max_running": 2})],
    ids=str,
)
def test_replayed_tokens_are_those_of_transformers(stage, options, loaded, prompts, reference):
    engine = graphed(load_engine(stage), overlap=stage == "06")(loaded, **options)
    drafts = options.get("num_draft_tokens", 0)
    asked = [prompt[:60] for prompt in prompts[: 2 if drafts else 5]]  # 5 of 6 rows
    expected = [reference.generate(prompt, COUNT, ignore_eos=True) for prompt in asked]
    models = [engine.model] + ([engine.drafter.model] if drafts else [])
    replayed = [noted_replays(model) for model in models]
    assert [one.token_ids for one in engine.generate(asked, GREEDY)] == expected
    assert all(replayed), "a model's steps were not replayed"
    if drafts:
        assert max(replayed[0]) > 2, "two requests with drafts are more than two rows"
        assert engine.stats()["accepted_tokens"] > 0
    else:
        assert len(replayed[0]) >= COUNT - 3 and max(replayed[0]) == 6


def noted_replays(model: GraphedModel) -> list[int]:
    """Return a list that grows by the size of each graph that is replayed."""
    sizes = []
    for size, replay in model.replays.items():
        model.replays[size] = lambda size=size, replay=replay: (sizes.append(size), replay())
    return sizes


def test_the_cost_of_drafts_is_measured_on_replays(loaded, monkeypatch):
    """Passes of a replayed model and of a plain one have other times: adaptive speculation must count with its own."""
    replays = []
    call = GraphedModel.__call__

    def noted(model, *arguments):
        hidden = call(model, *arguments)
        replays.append(model.replayed)
        return hidden

    def seconds(run) -> float:
        before = len(replays)
        run()
        return 1e-3 if any(replays[before:]) else 9e-3

    monkeypatch.setattr(GraphedModel, "__call__", noted)
    for name, value in {"timed": seconds, "SIZES": (1, 2, 8, 32), "TIMES": 1}.items():
        monkeypatch.setattr(pass_times, name, value)
    short = replace(loaded, config=replace(loaded.config, context_length=64))  # shorter than what passes attend to
    engine = graphed(load_engine("07"), overlap=False)(short, draft="draft", max_running=2)
    costs = engine.scheduler.speculation.costs
    assert [costs.target(n) for n in (1, 2, 8)] == [1e-3] * 3 and costs.target(32) == pytest.approx(9e-3)
    assert costs.draft(2) == 1e-3


def test_a_replay_changes_nothing_but_the_slots_of_its_batch(loaded, prompts):
    """Padding rows write, too: what is there already."""
    engines = [
        graphed(load_engine("05"), overlap=False)(loaded),
        load_engine("05")(loaded, kv_memory="8M", attention="torch"),
    ]
    for engine in engines:
        engine.generate([prompt[:20] for prompt in prompts[:6]], endless(2))  # Five of them leave a row of six over.
        engine.cache.k.fill_(7.0), engine.cache.v.fill_(7.0)
        engine.generate([prompt[:20] for prompt in prompts[:5]], GREEDY)
    pages = min(engine.cache.k.shape[1] for engine in engines)
    for kind in ("k", "v"):
        graphed_pages, plain_pages = (getattr(engine.cache, kind)[:, :pages] for engine in engines)
        used = (plain_pages != 7).any(-1).any(-1)
        assert torch.equal(used, (graphed_pages != 7).any(-1).any(-1))
        assert used.any() and torch.allclose(graphed_pages[used], plain_pages[used], atol=1e-4)


@pytest.mark.parametrize(
    ("wanted", "stage", "reason"),
    [
        ("graphs", "05", "need a CUDA device"),
        ("graphs", "08", "CUDA"),
        ("overlap", "02", "batch continuously"),
        ("overlap", "07", "must know the last tokens"),
    ],
)
def test_where_graphs_and_the_overlapped_loop_cannot_be_had(wanted, stage, reason, loaded):
    options = {"token_budget": 64} if stage > "03" else {}
    options |= {"num_draft_tokens": 2} if stage > "06" else {}
    if loaded.device.type == "cpu" or wanted == "overlap":
        with pytest.raises(ValueError, match=reason):
            make_engine(load_engine(stage), loaded, **{wanted: True}, **options)
        assert type(make_engine(load_engine(stage), loaded, **options)) is load_engine(stage)
