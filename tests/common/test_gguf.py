"""GGUF files: what is read from them is what transformers reads, and what cannot be read is refused in a sentence."""

import resource
import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from common import loader
from common.demo import script_for
from common.errors import InvalidInput
from common.fused.quantized import Codes, QuantizedWeight
from common.learn.milestones.stage_under_test import causal_attention
from common.loader import chat_prompt, load_model
from common.loader import gguf as ours
from common.loader.config import read_config
from common.loader.shard import Shard
from common.model import rope_frequencies
from common.reference import Reference
from common.stages import load_engine, stage_folders
from common.toml import read_toml
from tests.common.test_any_model import STAGES
from tests.helpers import gguf_files
from tests.helpers.engine_options import endless
from tests.helpers.gguf_files import LLAMA, write
from tests.helpers.small_models import refusal

FILES = [("llama", ours.TYPES, {4, 8}), ("qwen2", ["Q8_0"], {8}), ("qwen3", ["Q4_1"], {4})]
TEXT = "In 2023 the pages held  12 tokens,\n   4 of them <|im_end|>"
LLAMA_3 = ours.LLAMA_3 | {"factor": 32.0}
REFUSED = read_toml(Path(gguf_files.__file__).with_name("gguf_refused.toml"))
WRONG_COUNTS = [  # magic, version, tensors, fields, length of a name
    (0, "<I", 0), (4, "<I", 9), (8, "<Q", 2**60), (16, "<Q", 2**40), (8, "<Q", 2**15), (16, "<Q", 2**15),
    (24, "<Q", 2**62),
]  # fmt: skip
PARAMS = endless(6)


def peak_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def sentence(path) -> str:
    """Return why a file is refused, checked to have cost no memory."""
    before = peak_memory()
    message = refusal(InvalidInput, path)
    assert message.startswith(f"{path}: ") and peak_memory() - before < 2**29
    return message


def frequencies(rope: dict) -> torch.Tensor:
    return rope_frequencies({"rope_type": "default", "rope_theta": 5000.0} | rope, LLAMA.head_dim)[0]


@pytest.mark.parametrize(("family", "kinds", "bits"), FILES, ids=["all types", "8 bits", "4 bits"])
@torch.inference_mode()
def test_logits_are_those_of_transformers_own_reading_and_tokens_in_all_stages(family, kinds, bits, tmp_path):
    """bits: of the codes that are kept."""
    path = write(tmp_path / "small.gguf", family, kinds)
    loaded, reference = load_model(path, device="cpu", fused=False), Reference(str(path))
    weights = [module for module in loaded.model.modules() if isinstance(module, QuantizedWeight)]
    assert {weight.bits for weight in weights} == bits
    prompts = [loaded.tokenizer(text)["input_ids"] for text in (TEXT, "A token")]
    read_by_the_course = reference.next_logits(prompts[0])
    reference.model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).eval()
    expected = reference.model(torch.tensor(prompts[:1])).logits[0]
    assert (read_by_the_course - expected[-1]).abs().max() < 1e-5
    hidden = loaded.model(torch.tensor(prompts[0]), torch.arange(len(prompts[0])), causal_attention)
    assert (loaded.model.logits(hidden) - expected).abs().max() < 1e-4 * expected.abs().max()
    expected = [reference.generate(prompt, 6, ignore_eos=True) for prompt in prompts]
    for stage in stage_folders():
        engine = load_engine(stage.name)(loaded, **STAGES.get(stage.name[:2], {}))
        assert [request.token_ids for request in engine.generate(prompts, PARAMS)] == expected


@pytest.mark.parametrize(("bits", "kind"), [(8, "Q8_0"), (4, "Q4_1")])
def test_rounding_a_checkpoint_loses_no_more_than_llama_cpps_file_does(bits, kind):
    weight, kind = torch.randn(64, 576), gguf.GGMLQuantizationType[kind]
    rounded = QuantizedWeight(Codes.of(weight, bits), 576, torch.float32).rows(torch.arange(64))
    theirs = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind))
    assert (rounded - weight).std() < 1.001 * (theirs - weight).std()


def test_the_tokenizer_ends_of_text_and_shards_are_the_files_own(tmp_path):
    path = write(tmp_path / "small.gguf", kinds=["Q8_0"], **{"tokenizer.chat_template": "{{ messages }}"})
    options = {"device": "cpu", "fused": False, "quantization": "none"}
    bundled, loaded = load_model(device="cpu", load_format="none"), load_model(path, **options)
    assert loaded.tokenizer(TEXT)["input_ids"] == bundled.tokenizer(TEXT)["input_ids"]
    assert loaded.tokenizer.chat_template == "{{ messages }}"
    assert loaded.eos_token_ids == {bundled.tokenizer.eos_token_id}
    shards = [load_model(path, **options, shard=Shard(rank, 2)).model for rank in (0, 1)]
    whole, parts = loaded.model.blocks[1].mlp.down.weight, [shard.blocks[1].mlp.down.weight for shard in shards]
    assert torch.equal(torch.cat(parts, dim=1), whole)


def test_the_tokenizer_of_a_packaged_model_is_converted_once(tmp_path, monkeypatch):
    path = write(tmp_path / "small.gguf", **{"tokenizer.chat_template": "{{ messages }}"})
    monkeypatch.setattr(loader, "is_packaged", path.__eq__)
    made = loader.load_tokenizer(path)
    with monkeypatch.context() as gone:
        gone.setattr(ours, "build_tokenizer", None)
        kept = loader.load_tokenizer(path)
    assert kept(TEXT)["input_ids"] == made(TEXT)["input_ids"]
    assert (kept.chat_template, kept.eos_token_id) == ("{{ messages }}", made.eos_token_id)
    [file] = tmp_path.glob("tokenizer-*/tokenizer.json")
    for damage in (lambda: file.write_text("{"), file.unlink):
        damage()
        assert loader.load_tokenizer(path)(TEXT)["input_ids"] == made(TEXT)["input_ids"]


@pytest.mark.parametrize(
    ("scaling", "rope", "context"),
    [
        ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}, 2048),  # llama.cpp understands it so
        ({"type": "none", "factor": 4.0}, {}, 512),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 128},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            512,
        ),
        ({}, LLAMA_3, 512),
    ],
)
def test_scaled_rotations_come_from_metadata_and_from_the_tensor_of_llama_3(scaling, rope, context, tmp_path):
    changes = {f"llama.rope.scaling.{name}": value for name, value in scaling.items()}
    if rope is LLAMA_3:
        changes = {ours.SCALING_TENSOR: ((frequencies({}) / frequencies(rope)).numpy(), "F32")}
    config = read_config(write(tmp_path / "small.gguf", **changes))
    assert torch.allclose(frequencies(config.rope), frequencies(rope)) and config.context_length == context


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        *((changes, named) for named, changes in REFUSED.items()),
        ({"general.architecture": "x" * 10**6}, "general.architecture='xxx"),
        ({"output_norm.weight": ""}, "has no tensor model.norm.weight"),
        ({"blk.0.attn_q.weight": (np.zeros((255, 256), np.float32), "F32")}, "q_proj.weight has shape (255, 256)"),
        ({ours.SCALING_TENSOR: (np.full((32, 2), 2, np.float32), "F32")}, "rope_freqs.weight=[2.0, "),
        ({"blk.0.attn_v.weight": (np.zeros((128, 256), np.float64), "F64")}, "blk.0.attn_v.weight='F64'"),
    ],
)
def test_what_cannot_run_is_refused_by_the_name_of_its_field_or_tensor(changes, named, tmp_path):
    assert named in sentence(write(tmp_path / "small.gguf", **changes))


def test_each_cut_count_and_changed_byte_of_the_header_ends_in_a_sentence_or_a_model(tmp_path):
    path = write(tmp_path / "small.gguf", **{"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.merges": ""})
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    damaged = [whole[:cut] for cut in [0, 7, 23, 24, *rng.integers(25, len(whole), 8)]]
    for place, form, value in WRONG_COUNTS:
        damaged.append(whole[:place] + (number := struct.pack(form, value)) + whole[place + len(number) :])
    for content in damaged:
        path.write_bytes(content)
        assert "not a complete GGUF file" in sentence(path)
    for place in rng.integers(0, whole.index(b"token_embd"), 100):
        content = bytearray(whole)
        content[place] ^= 1 << rng.integers(8)
        path.write_bytes(content)
        with suppress(InvalidInput):
            load_model(path, device="cpu", load_format="none", model_impl="course")


@pytest.mark.smollm2
@torch.inference_mode()
def test_smollm2_gives_transformers_tokens():
    """The small models above are in all stages; this one has the weights, and products of their sizes."""
    try:
        loaded = load_model("smollm2", device="cpu", dtype="float32")
    except InvalidInput as reason:
        pytest.skip(str(reason))
    questions = [*script_for("smollm2").questions.values()][:2]
    prompts = [chat_prompt(loaded.tokenizer, question) for question in questions]
    requests = load_engine("08")(loaded, max_running=2, num_draft_tokens=2).generate(prompts, PARAMS)
    reference = Reference("smollm2")
    expected = [reference.generate(prompt, 6, ignore_eos=True) for prompt in prompts]
    assert [request.token_ids for request in requests] == expected
