"""Decoders of the transformers library behind the course's seam: small random ones, against its own `generate`."""

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from common.learn.milestones.stage_under_test import causal_attention
from common.loader import CHECKPOINTS, load_model
from common.loader.shard import Shard
from common.model import Transformer
from common.reference import Reference
from common.sampling import SamplingParams
from common.stages import load_engine

SIZES = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 128, "tie_word_embeddings": False,
    # Wide weights, so that answers vary and depend on every operation.
    "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
ALL_HEADS = {"num_key_value_heads": 4}
ALTERNATING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
ROUTED = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "head_dim": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 48, "v_head_dim": 32, "q_lora_rank": 32,
    "kv_lora_rank": 32, "first_k_dense_replace": 2,
}  # fmt: skip
GPT2 = ALL_HEADS | {"n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 128}
MODELS = {  # options that differ from SIZES
    "Gemma3Text": ALTERNATING | {"query_pre_attn_scalar": 32, "final_logit_softcapping": 9.0},
    "Phi3": {},
    "GPTNeoX": ALL_HEADS,
    "GPT2": GPT2,
    "Olmo2": {},
    "Granite": {"attention_multiplier": 0.3, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "Mixtral": ROUTED | {"sliding_window": 8},
    "Mistral": {"sliding_window": 8},
    "Cohere": {"logit_scale": 0.5},
    "Afmoe": ALTERNATING | ROUTED | {"num_experts": 4, "moe_intermediate_size": 48},  # passes masks by keyword
    "Cohere2": ALTERNATING | {"logit_scale": 0.5},
    "DeepseekV3": ALL_HEADS | LATENT,
    "GPTBigCode": GPT2,
}
PROMPTS = ["The capital of France is Paris, and a page holds sixteen tokens of one sequence.", "A token"]
PARAMS = SamplingParams(max_tokens=5)  # a page has four
# Little memory and few requests: what is measured when an engine starts then takes no time.
PAGED = {"max_running": 2, "token_budget": 16, "kv_memory": "4M", "page_size": 4}
STAGES = {  # each attends in another way
    "01": {}, "02": {}, "04": {"max_running": 2, "token_budget": 16}, "05": PAGED, "06": PAGED,
    "07": PAGED | {"num_draft_tokens": 2},
}  # fmt: skip


def config_of(kind: str, **fields) -> transformers.PreTrainedConfig:
    return getattr(transformers, f"{kind}Config")(**SIZES | fields)


@pytest.fixture
def checkpoint(tmp_path):
    """A function that writes a small random checkpoint with the bundled tokenizer, and returns its folder."""

    def write(kind: str):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config_of(kind, **MODELS[kind]))
        model.save_pretrained(tmp_path)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(CHECKPOINTS / "target" / name, tmp_path)
        return tmp_path

    return write


def tokens_of(stage: str, loaded, **options) -> list[list[int]]:
    engine = load_engine(stage)(loaded, **STAGES[stage] | options)
    return [request.token_ids for request in engine.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("kind", MODELS)
def test_all_stages_give_the_tokens_and_scores_of_the_library(kind, checkpoint):
    folder = checkpoint(kind)
    loaded, reference = load_model(folder, device="cpu"), Reference(str(folder))
    prompts = [loaded.tokenizer(text)["input_ids"] for text in PROMPTS]
    expected = [reference.generate(prompt, PARAMS.max_tokens, ignore_eos=True) for prompt in prompts]
    assert loaded.note.startswith("model=transformers") and len(prompts[0]) > 12
    loaded.eos_token_ids = frozenset()
    for stage in STAGES:
        assert tokens_of(stage, loaded) == expected, f"stage {stage}"
    for options in {"attention": "torch"}, {"max_running": 1}:  # one request alone: steps of one token
        assert tokens_of("05", loaded, **options) == expected, options

    ids = torch.tensor(prompts[0])
    hidden = loaded.model(ids, torch.arange(len(ids)), causal_attention)
    torch.testing.assert_close(
        loaded.model.logits(hidden[-1:])[0], reference.next_logits(prompts[0]), atol=1e-3, rtol=0
    )
    if any(loaded.model.windows):
        loaded.model.windows = [None] * len(loaded.model.windows)
        assert tokens_of("05", loaded) != expected, "no answer depends on the window"


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_the_bundled_model_answers_alike_both_ways(kv_dtype):
    ours, theirs = (load_model(device="cpu", model_impl=name, kv_dtype=kv_dtype) for name in ("auto", "transformers"))
    assert ours.config.kv_int8 == theirs.config.kv_int8 == (kv_dtype == "int8")
    assert isinstance(ours.model, Transformer) and not isinstance(theirs.model, Transformer)
    for stage in ("02", "06"):  # 02 has no pages
        assert tokens_of(stage, ours) == tokens_of(stage, theirs)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("T5", {}, "is_encoder_decoder=True"),
        ("Bert", ALL_HEADS, "neither causal nor a sliding window"),
        ("Gemma3", {}, "sub_configs=['text_config', 'vision_config']"),
        ("Mamba", {}, "layer_types=['linear_attention']"),
        ("Jamba", {}, "layer_types=['linear_attention']"),
        ("Llama4Text", {"num_local_experts": 2}, "layer_types=['chunked_attention']"),
        ("GPTNeoXJapanese", ALL_HEADS, "transformers does not let its attention be replaced"),
        ("DiffLlama", {}, "2 layers of 2 attend, 4 times in all, and here each must, once"),
        ("Doge", ALL_HEADS, "its code does not allow it ("),
        ("Roberta", ALL_HEADS | {"is_decoder": True, "pad_token_id": 0}, "from those with the library's own attention"),
        ("Gemma2", {}, "layer 0 attends with softcap"),
        ("Gemma4Text", {}, "'head_dim' is a per-layer attribute and may vary across layers"),
        ("GptOss", ROUTED, "layer 0 attends with s_aux"),
        ("Phi3", {"head_dim": 32, "num_key_value_heads": 3}, "num_key_value_heads"),
        ("Llama", {"hidden_act": "gelu", "quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(kind, fields, says, tmp_path):
    config_of(kind, **fields).save_pretrained(tmp_path)
    with pytest.raises(ValueError) as caught:
        load_model(tmp_path, device="cpu", load_format="dummy")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'config.json'}: ") and says in message and "\n" not in message


def test_random_weights_from_a_config_are_the_same_each_time(tmp_path):
    config_of("Olmo2").save_pretrained(tmp_path)
    first, second = (load_model(tmp_path, device="cpu", load_format="dummy").model.state_dict() for _ in range(2))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_a_tensor_that_is_missing_or_too_much_is_an_error(checkpoint):
    folder = checkpoint("Phi3")
    tensors = load_file(folder / "model.safetensors")
    norm = tensors.pop("model.norm.weight")
    more = tensors | {"model.norm.weight": norm, "model.other.weight": norm.clone()}
    for wrong, says in (
        (tensors, "1 missing tensor, among them model.norm"),
        (more, "1 unexpected tensor, among them model.other"),
    ):
        save_file(wrong, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=says):
            load_model(folder, device="cpu")


def test_only_the_model_of_the_course_is_split(tmp_path):
    config_of("Phi3").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="use one rank"):
        load_model(tmp_path, device="cpu", load_format="none", shard=Shard(0, 2))
