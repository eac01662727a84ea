"""What the loader accepts, what it costs, and in which words it refuses.

That a loaded model computes the right thing is shown in test_model.py. Here checkpoints are written tensor by tensor,
so that each can be wrong in one way.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import AutoConfig, LlamaConfig, Phi3Config, Qwen3Config

from common.errors import InvalidInput
from common.loader import CHECKPOINTS, load_model
from common.loader.config import COMPLETE_LLAMA, UNREAD, model_config, read_config, read_eos_token_ids, read_json
from common.loader.device import choose_device
from common.loader.shard import WHOLE, Shard
from common.loader.weights import checkpoint_names
from common.stages import ROOT
from tests.helpers import helper_file
from tests.helpers.small_models import LLAMA_FILE as CONFIG
from tests.helpers.small_models import refusal, save_weights

CONFIGS = helper_file("configs.json")
DOWN = "model.layers.1.mlp.down_proj.weight"


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture
def config(tmp_path):
    """A function that writes config.json to `tmp_path`, with fields changed; the folder is returned."""

    def write(**fields) -> Path:
        write_json(tmp_path / "config.json", CONFIG | fields)
        return tmp_path

    return write


@pytest.fixture
def checkpoint(config):
    """A function that writes a small checkpoint of random tensors beside it."""

    def write(**fields) -> dict[str, torch.Tensor]:
        folder = config(**fields)
        return save_weights(load_model(folder, device="cpu", load_format="dummy", fused=False), folder)

    return write


def save_shards(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """The tensors in two files beside `path` and an index, as large checkpoints are stored."""
    names = sorted(tensors)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, path.with_name(file))
    write_json(path.with_name("model.safetensors.index.json"), {"metadata": {}, "weight_map": files})


# ---- config.json ----


@pytest.mark.parametrize(("fields", "named"), CONFIGS["refused"])
def test_unsupported_options_are_refused_by_name(fields, named, config):
    message = refusal(ValueError, folder := config(**fields), load_format="dummy", model_impl="course")
    assert message.startswith(f"{folder / 'config.json'}: ") and named in message


@pytest.mark.parametrize(("fields", "context_length"), CONFIGS["accepted"])
def test_unusual_options_are_accepted(fields, context_length, config):
    read = read_config(config(**fields))
    assert (read.context_length, read.head_dim) == (context_length, 16)


OLDER = {"rope_scaling", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}
KNOWN = OLDER.union(*(config().to_dict() for config in (LlamaConfig, Qwen3Config, Phi3Config)))
NUMBERS = st.sampled_from([0.5, 2.0, 4, 2048, 1e4, 0, "linear", "yarn", "llama3", "default"])
ROPE = st.dictionaries(st.sampled_from(["rope_type", "type", "rope_theta", "factor", "partial_rotary_factor"]), NUMBERS)
VALUES = st.none() | st.booleans() | st.integers(-1, 300) | st.floats(0, 2) | st.just(["full_attention"] * 8) | ROPE


@given(
    st.dictionaries(st.sampled_from(sorted(KNOWN - UNREAD)), VALUES, max_size=3),
    st.sets(st.sampled_from(sorted(COMPLETE_LLAMA)), max_size=1),
)
@example({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, set())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_with_more_or_fewer_fields_means_what_transformers_reads(tmp_path, fields, left_out):
    """Or it is refused, also by the short way for complete files: with `rope_scaling`, logits were off by up to 17."""
    complete = read_json(CHECKPOINTS / "target" / "config.json")
    kept = {field: value for field, value in complete.items() if field not in left_out}
    write_json(tmp_path / "config.json", kept | fields | {"model_type": "llama"})
    try:
        expected = model_config(AutoConfig.from_pretrained(tmp_path))
    except Exception:  # transformers raises different types
        expected = None
    try:
        read = read_config(tmp_path)
    except ValueError:
        read = None
    only_odd_heads = read is not None and read.hidden_size % read.num_heads  # Only transformers refuses these.
    assert read == expected or only_odd_heads


@pytest.mark.parametrize(
    ("generation_config", "eos_token_id", "expected"),
    [
        ({"eos_token_id": [5, 6]}, 2, {5, 6}),
        ({"eos_token_id": 5}, 2, {5}),
        ({"temperature": 1.0}, [2, 3], {2, 3}),
        (None, 2, {2}),
        (None, None, set()),  # not 2, although transformers takes 2 for any Llama
    ],
)
def test_eos_token_ids(generation_config, eos_token_id, expected, config):
    folder = config(eos_token_id=eos_token_id)
    if generation_config is not None:
        write_json(folder / "generation_config.json", generation_config)
    assert read_eos_token_ids(folder) == expected


# ---- Weights ----


@pytest.mark.parametrize(
    ("stored", "asked"),
    [(torch.bfloat16, "float32"), (torch.float32, "bfloat16"), (torch.float16, torch.float16)],
)
def test_every_tensor_arrives_in_its_rows_and_in_the_type_asked_for(stored, asked, checkpoint, tmp_path):
    tensors = {name: tensor.to(stored) for name, tensor in checkpoint(attention_bias=True).items()}
    tables = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}  # old checkpoints store them: ignored
    save_shards(tensors | tables, tmp_path / "model.safetensors")
    loaded = load_model(str(tmp_path), device="cpu", dtype=asked, fused=False)  # Fused kernels pack the weights.
    parameters = dict(loaded.model.named_parameters())
    for name, tensor, rows in checkpoint_names(loaded.config):
        assert torch.equal(parameters[name][rows], tensors[tensor].to(loaded.dtype))
    assert loaded.model.cos.dtype == torch.float32  # positions need more digits than weights


def test_tied_embeddings_are_one_parameter_even_if_stored_twice(checkpoint, tmp_path):
    tensors = checkpoint(tie_word_embeddings=True)
    assert "lm_head.weight" not in tensors
    embedding = tensors["model.embed_tokens.weight"]
    for extra in ({}, {"lm_head.weight": embedding.clone()}):
        save_file(tensors | extra, tmp_path / "model.safetensors")
        model = load_model(tmp_path, device="cpu", dtype="bfloat16", fused=False).model
        assert model.head.weight is model.embedding.weight
        assert torch.equal(model.head.weight, embedding.bfloat16())
    save_file(tensors | {"lm_head.weight": embedding + 1}, tmp_path / "model.safetensors")
    assert "lm_head.weight" in refusal(ValueError, tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({DOWN: None}, f"no tensor {DOWN}"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}, "model.layers.0.self_attn.q_proj.bias belongs to"),
        ({DOWN: torch.ones(80)}, f"{DOWN} has shape (80,), but config.json makes it (64, 80)"),  # would broadcast
        ({DOWN: torch.ones(64, 80, dtype=torch.int8)}, f"{DOWN} is torch.int8"),
    ],
)
def test_tensors_that_are_missing_unexpected_or_of_another_shape_are_named(change, says, checkpoint, tmp_path):
    tensors = checkpoint() | change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, tmp_path / "model.safetensors")
    for shard in (WHOLE, Shard(0, 2)):  # A shard has a part of the shape.
        message = refusal(ValueError, tmp_path, shard=shard)
        assert message.startswith(str(tmp_path)) and says in message


@pytest.mark.parametrize(
    ("file", "left", "error", "says"),
    [
        ("config.json", None, FileNotFoundError, "no such file"),
        ("config.json", b"{", ValueError, "not valid JSON"),
        ("config.json", b"[]", ValueError, "a JSON list"),
        ("model.safetensors", None, FileNotFoundError, "no such file"),
        ("model.safetensors", b"half", ValueError, "not a complete"),
        ("model.safetensors.index.json", b"{}", ValueError, "weight_map is missing"),
        ("model-00002-of-00002.safetensors", None, FileNotFoundError, "no such file, but"),
    ],
)
def test_a_missing_or_damaged_file_is_named(file, left, error, says, checkpoint, tmp_path):
    """left: what is left of the file; None: no file."""
    tensors, path = checkpoint(), tmp_path / file
    if file not in ("config.json", "model.safetensors"):
        save_shards(tensors, tmp_path / "model.safetensors")
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    message = refusal(error, tmp_path)
    assert message.startswith(f"{path}: ") and says in message


def test_an_index_wins_over_a_single_file_and_files_without_an_index_are_found(checkpoint, tmp_path):
    stray = checkpoint()
    save_shards({name: tensor + 1 for name, tensor in stray.items()}, tmp_path / "model.safetensors")
    for _ in ("with an index and a stray file", "without both"):
        model = load_model(tmp_path, device="cpu", fused=False).model
        assert torch.equal(model.embedding.weight, stray["model.embed_tokens.weight"] + 1)
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        (tmp_path / "model.safetensors.index.json").unlink(missing_ok=True)


# ---- What loading costs ----

COST = """
import multiprocessing, sys, threading, time
from pathlib import Path
import psutil, torch
from common.loader import load_model

def imported(*modules):
    return [module for module in modules if module in sys.modules]

def anonymous_bytes():  # not RSS, which counts pages of mapped files that the system can drop at any time
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

class Peak(threading.Thread):
    value, stop = 0, False

    def run(self):
        while not self.stop:
            self.value = max(self.value, anonymous_bytes())
            time.sleep(0.005)  # more often would keep the loader from the interpreter

print(imported("transformers", "huggingface_hub"))
multiprocessing.set_start_method("spawn")  # as in a process that `check` starts, and kills
from common.stages import load_engine

load_engine("07")(load_model(), kv_memory="8M", num_draft_tokens=2).generate(["Once upon a time"])
print(imported("torch._dynamo", "transformers.models.llama", "sympy") + psutil.Process().children())
before, peak = anonymous_bytes(), Peak()
peak.start()
load_model(sys.argv[1], device="cpu")
peak.stop = True
peak.join()
print(peak.value - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="NOT MEASURED: peak memory is read from /proc, which is not here"
)
def test_a_process_imports_what_it_needs_and_has_the_weights_in_memory_once(tmp_path):
    """It imports transformers for a model only. It needs neither its class for Llama nor initialisation on meta: both
    import a compiler, 2 to 4 s. It makes no lock of several processes: that starts a process, which warns if one stays.

    The weights are 64 MB in bfloat16, converted to float32. A loader that read everything before it copies would take
    1.5 times what they take then.
    """
    large = {"hidden_size": 1024, "intermediate_size": 1536, "num_hidden_layers": 3, "tie_word_embeddings": False}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8}
    complete = read_json(CHECKPOINTS / "target" / "config.json")  # It has all fields: transformers need not read it.
    write_json(tmp_path / "config.json", complete | large | heads)
    loaded = load_model(tmp_path, device="cpu", dtype="bfloat16", load_format="dummy", fused=False)
    tensors = save_weights(loaded, tmp_path)

    command = [sys.executable, "-c", COST, str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    *imported, peak = result.stdout.splitlines()
    assert imported == ["[]", "[]"]
    weights_in_float32 = 4 * sum(tensor.numel() for tensor in tensors.values())
    assert 0.9 < int(peak) / weights_in_float32 <= 1.3


# ---- Names ----


def test_names_stand_for_bundled_folders():
    names = {None: ("bundled", 8), "target": ("target", 8), "draft": ("draft", 2), "qwen3-0.6b": ("qwen3-0.6b", 28)}
    for asked, expected in names.items():
        loaded = load_model(asked, device="cpu", load_format="none")
        assert (loaded.name, loaded.config.num_layers) == expected
    assert "load_format='dummy'" in refusal(ValueError, "Qwen3-0.6B")
    assert refusal(FileNotFoundError, "./no/such/folder").startswith("./no/such/folder: ")


def test_other_names_are_looked_up_on_the_hub(monkeypatch, checkpoint, tmp_path):
    checkpoint()
    asked = {}

    def snapshot_download(name, allow_patterns, ignore_patterns):
        asked[name] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load_model("someone/model", device="cpu").name == "someone/model"
    load_model("someone/large-model", device="cpu", load_format="dummy")
    assert "*.safetensors" in asked["someone/model"] and "*.safetensors" not in asked["someone/large-model"]


# ---- Tokenizer ----


def test_a_tokenizer_may_name_the_end_of_a_text_and_a_damaged_one_is_named(tmp_path, config):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(CHECKPOINTS / "target" / name, tmp_path)
    loaded = load_model(config(vocab_size=4096, eos_token_id=None), device="cpu", load_format="dummy")
    assert loaded.eos_token_ids == {loaded.tokenizer.eos_token_id}  # no file names one, so it is the tokenizer's
    (tmp_path / "tokenizer.json").write_text("{")
    assert str(tmp_path) in refusal(ValueError, config(), load_format="dummy")


# ---- Device and type ----


@pytest.mark.parametrize(
    ("capability", "asked", "device", "dtype"),
    [
        ((8, 0), (), "cuda", torch.bfloat16),
        ((7, 5), (), "cuda", torch.float16),
        (None, (), "cpu", torch.float32),
        ((9, 0), ("cpu", "bfloat16"), "cpu", torch.bfloat16),
    ],
)
def test_device_and_type_are_those_asked_for_or_the_best_here(capability, asked, device, dtype, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    assert choose_device(*asked)[:2] == (torch.device(device), dtype)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "gpu"}, "device='gpu' is not a device"),
        ({"device": "mps"}, "device='mps' is not supported"),
        ({"device": "cuda:99"}, "device='cuda:99' is not available"),
        ({"dtype": torch.int8}, "dtype=torch.int8 is not supported"),
        ({"load_format": "gguf"}, "load_format='gguf' is unknown"),
        ({"quantization": "int5"}, "quantization='int5' is unknown"),
        ({"device": "cpu", "dtype": "float16", "quantization": "int4"}, "int4 needs kernels .* float32 and bfloat16"),
        ({"shard": Shard(0, 2), "quantization": "int4"}, "int4 needs kernels .* one rank; leave it out"),
        ({"quantization": "int4", "device": "cpu"}, r"only common/model\.py is quantised, and this is model=transform"),
        ({"shard": Shard(0, 2)}, "use one rank"),
    ],
)
def test_what_is_not_available_is_refused_before_weights_are_read(options, says, tmp_path):
    """There are none, and the model is one of the library's."""
    write_json(tmp_path / "config.json", {"model_type": "gpt2", "n_layer": 1})
    with pytest.raises(InvalidInput, match=says):
        load_model(tmp_path, **options)
