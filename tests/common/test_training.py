"""Training counts what the model itself says, and a draft learns from its teacher."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer

from common.checkpoints.corpus import chat
from common.checkpoints.packing import own_tokens, packed_rows
from common.checkpoints.recipes import PHASES
from common.checkpoints.tokenizer import END_OF_TEXT, FOLDER
from common.checkpoints.train import Training


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER / "draft")


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


def test_a_draft_learns_the_distribution_of_its_teacher(tmp_path, tokenizer):
    phase = replace(PHASES["draft"][1], steps=6, warmup=1, tokens_per_step=128, row_lengths=((1.0, 64),))
    training = Training("draft", 1, FOLDER / "draft", tmp_path, phase)
    rows = [next(packed_rows(tokenizer, "held-out", 64, 0))[0]]
    before = training.loss(rows, training.teacher)
    training.train(snapshot_every=100)
    after = training.loss(rows, training.teacher)
    training.model = training.teacher
    assert training.loss(rows, training.teacher) < after < before
