"""Training counts what the model itself says, resumes to the same weights, and a draft learns from its teacher."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer

from common.checkpoints import train
from common.checkpoints.corpus import chat
from common.checkpoints.packing import own_tokens, packed_rows
from common.checkpoints.recipes import PHASES
from common.checkpoints.tokenizer import END_OF_TEXT, FOLDER

ROWS = ((1.0, 64),)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER / "draft")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Makes a Training of a tiny model, six steps long, whose snapshots go to `work`."""
    draft = train.read_config(FOLDER / "draft")
    tiny = replace(draft, num_layers=1, hidden_size=32, num_heads=1, num_kv_heads=1, intermediate_size=32)
    monkeypatch.setattr(train, "read_config", lambda folder: tiny)
    short = tuple(replace(phase, steps=6, warmup=1, tokens_per_step=128, row_lengths=ROWS) for phase in PHASES["draft"])
    monkeypatch.setitem(train.PHASES, "draft", short)
    monkeypatch.setattr(
        train.Training, "start_weights", lambda self: [p.data.normal_(std=0.02) for p in self.model.parameters()]
    )

    def make(number: int, work: str) -> train.Training:
        training = train.Training("draft", number, FOLDER / "draft", tmp_path / work)
        training.resume()
        return training

    return make


def test_only_the_assistant_and_plain_documents_count(tokenizer):
    plain, turns = "Rain falls.", ("Copy: harp orbit", "harp orbit", "Again: x", "x")
    text = f"{chat(*turns, system='Be kind.')}{END_OF_TEXT}{plain}{END_OF_TEXT}{chat('Hi', 'Hello!')}"
    ids = torch.tensor([tokenizer(text)["input_ids"]] * 2)
    own = own_tokens(tokenizer, ids)
    assert torch.equal(own[0], own[1])
    said = tokenizer.decode(ids[0][own[0]])
    for turn in ("harp orbit<|im_end|>", "x<|im_end|>", plain, "Hello!<|im_end|>"):
        assert turn in said
    unsaid = tokenizer.decode(ids[0][~own[0]])
    assert not any(turn in said for turn in ("Copy", "Again", "Be kind.", "Hi<"))
    assert all(turn in unsaid for turn in ("Copy: harp orbit", "Again: x", "Be kind.", "Hi<"))


def test_a_draft_learns_the_distribution_of_its_teacher(start, tokenizer):
    training = start(2, "taught")
    rows = [next(packed_rows(tokenizer, "held-out", 64, 0))[0]]
    before = training.loss(rows, training.teacher)
    training.train(snapshot_every=100)
    after = training.loss(rows, training.teacher)
    training.model = training.teacher
    assert training.loss(rows, training.teacher) < after < before
