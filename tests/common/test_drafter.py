"""A model writes conversations, and a drafter learns from them; what was stopped goes on to the same drafter."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from common.checkpoints import conversations, drafter, train
from common.checkpoints.tokenizer import FOLDER
from common.checkpoints.train import causal_attention
from common.loader.draft import load_draft_model

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


def test_a_run_that_was_stopped_ends_with_the_same_drafter(tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert drafter.make_drafter(TARGET, whole, SHARDS, STEPS) == 0
    loss = drafter.Distillation.loss

    def stopped_in_the_third_step(training, *arguments):
        if training.step == 2:
            training.stop()
        return loss(training, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(drafter.Distillation, "loss", stopped_in_the_third_step)
        assert drafter.make_drafter(TARGET, parts, SHARDS, STEPS) == 130
    assert not (parts / "model.safetensors").exists()
    (parts / "texts-0001.safetensors").unlink()  # as if writing had been stopped, too
    assert drafter.make_drafter(TARGET, parts, SHARDS, STEPS) == 0
    for name in ("model.safetensors", "texts-0001.safetensors"):
        a, b = load_file(whole / name), load_file(parts / name)
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_drafter_learns_what_its_target_says(tmp_path, draft, monkeypatch):
    monkeypatch.setattr(drafter, "WIDTH", 64)
    drafter.make_drafter(TARGET, tmp_path, SHARDS, 50)
    training = drafter.Distillation(draft, tmp_path, range(SHARDS), drafter.Phase(1))
    training.held_out = training.texts  # There are too few texts to learn more than these.
    before = training.held_out_loss(0)
    training.model.load_state_dict(drafter.load_model(tmp_path, fused=False).model.state_dict())
    after = training.held_out_loss(0)
    assert after < 0.8 * before
    with torch.no_grad():
        some_tokens = training.loss(training.texts).item()
        for text in training.texts:
            hidden = draft.model(text.token_ids, torch.arange(len(text.token_ids)), causal_attention(1))
            assert torch.equal(draft.model.logits(hidden).argmax(-1), text.likeliest[:, 0])
    assert some_tokens == pytest.approx(after, rel=0.05), "the scores of some tokens stand for all"
    assert load_draft_model(str(tmp_path), draft), "it can draft for its target"


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / "draft" / name, tmp_path)
    with pytest.raises(ValueError, match="no tokenizer"):
        drafter.make_drafter(str(tmp_path), tmp_path / "out", SHARDS, STEPS)
