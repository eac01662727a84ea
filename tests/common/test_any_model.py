"""Decoders of the transformers library behind the course's one call: small random ones, against its own `generate`.

Their weights are wide, so that answers vary and depend on every operation.
"""

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from common.learn.milestones.stage_under_test import causal_attention
from common.loader import CHECKPOINTS, load_model
from common.model import Transformer
from common.reference import Reference
from common.sampling import SamplingParams
from common.stages import load_engine
from tests.helpers import helper_file
from tests.helpers.small_models import refusal

CONFIGS = helper_file("configs.json")
MODELS, REFUSED = CONFIGS["library"], CONFIGS["refused_of_library"]
PROMPTS = ["The capital of France is Paris, and a page holds sixteen tokens of one sequence.", "A token"]
PARAMS = SamplingParams(max_tokens=5)  # A page has 4 tokens, so each answer reaches another page.
# Little memory and few requests, so that the measurements at the start of an engine take no time.
PAGED = {"max_running": 2, "token_budget": 16, "kv_memory": "4M", "page_size": 4}
STAGES = {  # Each attends in another way: one kind of model runs in all of them.
    "01": {}, "02": {}, "04": {"max_running": 2, "token_budget": 16}, "05": PAGED, "06": PAGED,
    "07": PAGED | {"num_draft_tokens": 2},
}  # fmt: skip


def config_of(kind: str, **fields) -> transformers.PreTrainedConfig:
    return getattr(transformers, f"{kind}Config")(**CONFIGS["library_sizes"] | fields)


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
    for stage in STAGES if kind == "Gemma3Text" else ["05"]:
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


def test_the_bundled_model_answers_alike_both_ways():
    """With K and V in 8 bits, which the library does not have."""
    ours, theirs = (load_model(device="cpu", model_impl=name, kv_dtype="int8") for name in ("auto", "transformers"))
    assert isinstance(ours.model, Transformer) and not isinstance(theirs.model, Transformer)
    for stage in ("02", "06"):  # 02 has no pages
        assert tokens_of(stage, ours) == tokens_of(stage, theirs)


@pytest.mark.parametrize(("kind", "fields", "says"), REFUSED)
def test_what_cannot_run_is_refused_in_a_sentence(kind, fields, says, tmp_path):
    config_of(kind, **fields).save_pretrained(tmp_path)
    message = refusal(ValueError, tmp_path, load_format="dummy")
    assert message.startswith(f"{tmp_path / 'config.json'}: ") and says in message


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
