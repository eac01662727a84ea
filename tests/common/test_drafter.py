"""A model writes conversations, and a drafter learns from them; what was stopped goes on to the same drafter."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from common.checkpoints import conversations, drafter, train
from common.checkpoints.tokenizer import FOLDER
from common.checkpoints.train import causal_attention
from common.sampling import SamplingParams
from common.stages import load_engine

TARGET, SHARDS, STEPS = str(FOLDER / "draft"), 3, 6


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Short conversations, a narrow drafter, and float32, in which a text does not depend on the batch."""
    sizes = {"SHARD": 2, "AT_ONCE": {"cpu": 4}, "QUESTION_TOKENS": 8, "ANSWER_TOKENS": 12}
    for name, value in sizes.items():
        monkeypatch.setattr(conversations, name, value)
    narrow = {"WIDTH": 32, "HEADS": 1, "OTHERS": 256, "TOKENS_PER_STEP": {"cpu": 128}, "has_bfloat16": lambda: False}
    for name, value in narrow.items():
        monkeypatch.setattr(drafter, name, value)
    monkeypatch.setattr(train, "set_handler", lambda *_: None)  # pytest keeps its own handlers.


def stopped_after(monkeypatch, owner, name: str, calls: int) -> None:
    """Let a function raise KeyboardInterrupt, as Ctrl-C does, in every call after the first `calls`."""
    function, left = getattr(owner, name), iter(range(calls))

    def call(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return function(*args)

    monkeypatch.setattr(owner, name, call)


def test_a_run_that_was_stopped_ends_with_the_same_drafter(tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert drafter.make_drafter(TARGET, whole, SHARDS, STEPS) == 0
    with monkeypatch.context() as patch:
        stopped_after(patch, conversations, "write_shard", 1)
        with pytest.raises(KeyboardInterrupt):
            drafter.make_drafter(TARGET, parts, SHARDS, STEPS)
    assert len(list(parts.glob("texts-*.safetensors"))) == 1
    train = drafter.Distillation.train

    def stopped_in_the_third_step(training, snapshot_every):
        loss = training.loss
        training.loss = lambda *args: training.step == 2 and training.stop() or loss(*args)
        train(training, snapshot_every)

    with monkeypatch.context() as patch:
        patch.setattr(drafter.Distillation, "train", stopped_in_the_third_step)
        assert drafter.make_drafter(TARGET, parts, SHARDS, STEPS) == 130
    assert not (parts / "model.safetensors").exists()
    assert drafter.make_drafter(TARGET, parts, SHARDS, STEPS) == 0
    for name in ("model.safetensors", *(f"texts-{i:04}.safetensors" for i in range(SHARDS))):
        a, b = load_file(whole / name), load_file(parts / name)
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_drafter_learns_and_drafts(tmp_path, draft, monkeypatch):
    monkeypatch.setattr(drafter, "WIDTH", 64)
    drafter.make_drafter(TARGET, tmp_path, SHARDS, 1)
    before = drafter.load_model(tmp_path, fused=False).model.state_dict()
    (tmp_path / "snapshot.pt").unlink()
    drafter.make_drafter(TARGET, tmp_path, SHARDS, 100)
    training = drafter.Distillation(draft, tmp_path, range(SHARDS), drafter.Phase(1))
    after = drafter.load_model(tmp_path, fused=False).model.state_dict()
    training.held_out = training.texts  # There are too few texts to learn more than these.
    losses = [training.model.load_state_dict(each) and training.held_out_loss(0) for each in (before, after)]
    assert losses[1] < 0.8 * losses[0]
    with torch.no_grad():
        some_tokens = training.loss(training.texts).item()
        for text in training.texts:
            hidden = draft.model(text.token_ids, torch.arange(len(text.token_ids)), causal_attention(1))
            assert torch.equal(draft.model.logits(hidden).argmax(-1), text.likeliest[:, 0])
    assert some_tokens == pytest.approx(losses[1], rel=0.05), "the scores of some tokens stand for all"
    prompts, params = ["The capital of France is", "Once upon a time"], SamplingParams(max_tokens=8)
    engine = load_engine("07")(draft, draft=str(tmp_path), num_draft_tokens=2)
    drafted = engine.generate(prompts, params)
    expected = load_engine("06")(draft).generate(prompts, params)
    assert engine.stats()["draft_tokens"] > 0
    assert [request.token_ids for request in drafted] == [request.token_ids for request in expected]


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / "draft" / name, tmp_path)
    with pytest.raises(ValueError, match="no tokenizer"):
        drafter.make_drafter(str(tmp_path), tmp_path / "out", SHARDS, STEPS)
