"""Shards: the parts of all ranks make up the model, and together compute its logits.

Ranks are threads of this process here; test_tensor_parallel.py has processes.
"""

import json
from pathlib import Path

import pytest
import torch

from common.learn.milestones.stage_under_test import causal_attention
from common.loader import Loaded, load_model
from common.loader import shard as shard_module
from common.loader.shard import WHOLE, Shard
from tests.helpers.small_models import LLAMA_FILE, save_weights
from tests.helpers.thread_ranks import Threads

LLAMA = LLAMA_FILE | {
    "vocab_size": 96, "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True
}  # fmt: skip
CONFIGS = {
    "biases": LLAMA | {"attention_bias": True},
    "qkv_bias": LLAMA | {"model_type": "qwen2", "tie_word_embeddings": False},
    "qk_norm": LLAMA | {"model_type": "qwen3", "head_dim": 16},
    "vocabulary of 97": LLAMA | {"vocab_size": 97, "tie_word_embeddings": False},
    "vocabulary of 97, tied": LLAMA | {"vocab_size": 97},
    "a rank without vocabulary": LLAMA | {"vocab_size": 9, "tie_word_embeddings": False},
}


def load(folder: Path, shard: Shard = WHOLE, **options) -> Loaded:
    defaults = {"dtype": "float32", "shard": shard, "fused": False}  # so that all parameters have their plain names
    return load_model(folder, device="cpu", **defaults | options)


@pytest.fixture
def whole(tmp_path, config) -> Loaded:
    """A random model, which is also written to `tmp_path` as a checkpoint."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    whole = load(tmp_path, load_format="dummy")
    generator = torch.Generator().manual_seed(1)
    for parameter in whole.model.parameters():  # norms too: each head must get its own numbers
        parameter.normal_(generator=generator)
    save_weights(whole, tmp_path)
    return whole


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize(("count", "options"), [(2, {"fused": "auto"}), (4, {}), (4, {"load_format": "dummy"})])
def test_shards_together_compute_the_logits_of_the_whole(tmp_path, monkeypatch, whole, config, count, options):
    ids, positions = torch.arange(9), torch.arange(9)
    model = load(tmp_path, **options | {"fused": False}).model
    expected = model.logits(model(ids, positions, causal_attention))
    threads = Threads(count)
    monkeypatch.setattr(shard_module, "dist", threads)
    shards = [load(tmp_path, Shard(rank, count), **options) for rank in range(count)]

    def compute(rank):
        model = shards[rank].model
        hidden = model(ids, positions, causal_attention)
        return model.logits(hidden), model.logits(hidden[[]])

    results = threads.run(compute)
    for logits, none in results:
        assert logits.shape == expected.shape and none.shape == (0, config["vocab_size"])
        assert torch.allclose(logits, expected, atol=1e-3 * expected.abs().max().item())
        assert torch.equal(logits, results[0][0]), "each rank has the same bits"


def test_the_rank_with_the_least_memory_decides(monkeypatch):
    threads = Threads(2)
    monkeypatch.setattr(shard_module, "dist", threads)
    numbers = [2**40 + 1, 2**40]
    assert threads.run(lambda rank: Shard(rank, 2).min_over_ranks(numbers[rank], torch.device("cpu"))) == [2**40, 2**40]
