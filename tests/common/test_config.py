"""config.json files that the loader accepts, and its errors for others."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from common.loader import CHECKPOINTS, load_model
from common.loader.config import COMPLETE_LLAMA, model_config, read_config, read_eos_token_ids, read_json
from common.model import Transformer

CONFIG = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
}


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def refusal(folder: Path, error: type[Exception] = ValueError) -> str:
    """Return the error of `load_model`, checked to be one sentence on one line that begins with the file."""
    with pytest.raises(error) as caught:
        load_model(folder, device="cpu", load_format="dummy")
    message = str(caught.value)
    assert message.startswith(f"{folder / 'config.json'}: ")
    assert "\n" not in message and ". " not in message and not message.endswith(".")
    return message


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2'"),
        ({"model_type": None}, "model_type=None"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; supported is 'silu'"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config={'quant_method': 'fp8'}"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"num_key_value_heads": 8}, "num_key_value_heads=8"),
        ({"head_dim": 3}, "head_dim=3"),
        ({"head_dim": 9}, "head_dim"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"vocab_size": -1}, "vocab_size=-1"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": None}}, "factor=None"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_theta": None}, "rope_theta=None"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters=['full_attention']"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding_window=64"),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, "use_sliding_window"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2}, "layer_types=['sliding_attention']"),
        ({"eos_token_id": -1}, "eos_token_id=[-1]"),
    ],
)
def test_unsupported_options_are_refused_by_name(fields, named, tmp_path):
    write_json(tmp_path / "config.json", CONFIG | fields)
    assert named in refusal(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "mistral", "sliding_window": 128},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},  # the spelling of 2023
        {"num_key_value_heads": None},  # as many as query heads
        {"head_dim": None},  # hidden_size / num_attention_heads
    ],
)
def test_unusual_options_without_effect_are_accepted(fields, tmp_path):
    write_json(tmp_path / "config.json", CONFIG | fields)
    config = read_config(tmp_path)
    assert (config.context_length, config.head_dim) == (128, 16)


@pytest.mark.parametrize("fields", [{}, {"attention_bias": True}, {"tie_word_embeddings": False}, {"head_dim": 32}])
@pytest.mark.parametrize("name", ["target", "draft"])
def test_a_complete_llama_file_means_what_transformers_reads(name, fields, tmp_path):
    complete = read_json(CHECKPOINTS / name / "config.json") | fields
    write_json(tmp_path / "config.json", complete)
    expected = model_config(AutoConfig.from_pretrained(tmp_path))
    assert read_config(tmp_path) == expected
    for field in COMPLETE_LLAMA:  # and one that is not complete goes through transformers
        write_json(tmp_path / "config.json", {key: value for key, value in complete.items() if key != field})
        assert read_config(tmp_path) == model_config(AutoConfig.from_pretrained(tmp_path))


def test_a_file_that_is_missing_or_not_a_json_object(tmp_path):
    assert "no such file" in refusal(tmp_path, FileNotFoundError)
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        assert "JSON" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("generation_config", "eos_token_id", "expected"),
    [
        ({"eos_token_id": [5, 6]}, 2, {5, 6}),
        ({"eos_token_id": 5}, 2, {5}),
        ({"temperature": 1.0}, [2, 3], {2, 3}),
        (None, 2, {2}),
        (None, None, set()),  # not 2, which is what transformers takes for any Llama
    ],
)
def test_eos_token_ids(generation_config, eos_token_id, expected, tmp_path):
    write_json(tmp_path / "config.json", CONFIG | {"eos_token_id": eos_token_id})
    if generation_config is not None:
        write_json(tmp_path / "generation_config.json", generation_config)
    assert read_eos_token_ids(tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "billions"),
    [("TinyLlama-1.1B", 1.10), ("Qwen3-0.6B", 0.60), ("Qwen3-8B", 8.19), ("Qwen2.5-14B", 14.77)],
)
def test_bundled_configs_describe_the_models_they_are_named_after(name, billions):
    config = read_config(CHECKPOINTS / "configs" / name)
    with torch.device("meta"):  # shapes only: the largest would take 59 GB
        parameters = list(Transformer(config).parameters())
    assert all(parameter.is_meta for parameter in parameters)
    assert round(sum(parameter.numel() for parameter in parameters) / 1e9, 2) == billions


@pytest.mark.parametrize("own", [32_768, 131_072])
def test_with_yarn_the_context_is_the_original_one_times_the_factor(tmp_path, own):
    """Some files give the stretched context as max_position_embeddings, others the original one."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    write_json(tmp_path / "config.json", CONFIG | {"rope_scaling": yarn, "max_position_embeddings": own})
    assert read_config(tmp_path).context_length == 131_072
