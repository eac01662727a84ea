"""Run a decoder of the transformers library behind the course's seam, `hidden = model(token_ids, positions, attend)`.

The library calls attention by name. So this module registers a function of its own under a name, which hands q, k and v
to `attend`, and the library's model becomes one more model of the course: it gets the ragged batch as one sequence with
explicit positions, no cache and no mask. vLLM's transformers backend does the same.

What the library asks of attention is found out by asking: when a model is loaded, one token runs through it, and each
layer's call is checked. A model whose attention is other than causal, or causal within a window, is refused by name:
it would run, and answer slightly wrong.
"""

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.utils import logging

from ..attention.window import windowed
from ..errors import InvalidInput, counted
from ..model import Attend, ModelConfig
from .config import SIZES, first_sentence, read_json, require

LAYER_TYPES = {"full_attention", "sliding_attention"}
UNUSUAL = {  # arguments of attention functions
    "softcap": "a cap on scores",
    "s_aux": "sinks",
    "position_bias": "a bias by position",
    "indices": "a choice of tokens",
}
NAME, ASKING = "course", "course_asking"  # of attention, as the library knows it: to run a model, and to check it


class Call(NamedTuple):
    """One layer's call of attention, while a model is checked."""

    layer: int
    window: int | None
    shapes: tuple[torch.Size, torch.Size]  # of k and v, [1, H_kv, N, D]
    unusual: tuple[str, ...]  # what it asks for beside causal attention


# The `attend` of the pass that runs in this thread, and each layer's window; or the list of calls of a check.
PASS: ContextVar[tuple[Attend, list[int | None]]] = ContextVar("pass")
CALLS: ContextVar[list[Call]] = ContextVar("calls")


class LibraryModel(nn.Module):
    """A transformers decoder with the interface of `common.model.Transformer`."""

    def __init__(self, decoder: nn.Module, head: nn.Module, config: ModelConfig, windows: list[int | None]):
        super().__init__()
        self.decoder, self.head, self.config, self.windows = decoder, head, config, windows

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """As `Transformer.forward`: `[N, hidden_size]` for `token_ids[N]` at `positions[N]`."""
        token = PASS.set((attend, self.windows))
        try:
            run = self.decoder(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        finally:
            PASS.reset(token)
        return run.last_hidden_state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Transformer.logits`, scaled and capped as the library does: `[R, V]` in float32."""
        return self.head(inputs_embeds=hidden[None], use_cache=False).logits[0].float()


@dataclass
class Hidden(MoeModelOutputWithPast):
    """What heads take from a decoder: `last_hidden_state`, and None for all else."""

    cross_attentions: tuple[Tensor] | None = None


class NoDecoder(nn.Module):
    """Stand in the decoder's place in a library model: what remains is the head, with all that it does to logits."""

    def forward(self, *_, inputs_embeds: Tensor, **__) -> Hidden:
        return Hidden(last_hidden_state=inputs_embeds)


def attend_by_course(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    **_,
) -> tuple[Tensor, None]:
    """Attend with the `attend` of this pass. query is [1, H, N, D], key and value [1, H_kv, N, D]; return [1, N, H, D].

    `attend` scales by 1 / sqrt(D); another scaling is multiplied into the queries.
    """
    attend, windows = PASS.get()
    # Kernels read strides, and `contiguous` leaves those of a single token as they come.
    q, k, v = (rows[0].transpose(0, 1).clone(memory_format=torch.contiguous_format) for rows in (query, key, value))
    if scaling is not None and not math.isclose(factor := scaling * math.sqrt(q.shape[-1]), 1.0):
        q = q * factor
    with windowed(windows[module.layer_idx]):
        return attend(module.layer_idx, q, k, v)[None], None


def note_call(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: int | None, **options
) -> tuple[Tensor, None]:
    """Note what a layer asks for, and return queries in place of results."""
    unusual = [f"{what} ({name})" for name, what in UNUSUAL.items() if options.get(name) is not None]
    if not options.get("is_causal", getattr(module, "is_causal", True)):
        unusual.append("a look at later tokens (is_causal=False)")
    CALLS.get().append(Call(module.layer_idx, attention_mask, (key.shape, value.shape), tuple(unusual)))
    return query.transpose(1, 2)[..., : value.shape[-1]], None


def window_of_mask(mask_function: Callable[..., Tensor], config: PreTrainedConfig, **_) -> int | None:
    """Return the window of a mask, None for a causal one. Raise InvalidInput if it is neither.

    mask_function(batch, head, query, key) says whether a query's position sees a key's; two positions are tried.
    """
    last = config.max_position_embeddings
    keys, seen = torch.arange(last + 1), []
    for position in (last, last - 1):
        one = torch.as_tensor(mask_function(0, 0, torch.tensor(position), keys)).expand(last + 1)
        count = int(one.sum())
        if not torch.equal(one, (keys <= position) & (keys > position - count)):
            raise InvalidInput("its attention is neither causal nor a sliding window")
        seen.append(position + 1 - count)
    if seen == [0, 0]:
        return None
    if seen[0] != seen[1] + 1:
        raise InvalidInput("its attention is neither causal nor a sliding window")
    return last + 1 - seen[0]


AttentionInterface.register(NAME, attend_by_course)  # without a mask: the library builds none for it
AttentionInterface.register(ASKING, note_call)
AttentionMaskInterface.register(ASKING, window_of_mask)


def read_library_config(folder: Path) -> tuple[ModelConfig, PreTrainedConfig]:
    """Return the sizes of `folder/config.json`, and the library's own configuration.

    Raise FileNotFoundError, or InvalidInput with the file and the field, for a model that cannot run here.
    """
    path = folder / "config.json"
    model_type = read_json(path).get("model_type")
    try:
        hf_config = AutoConfig.from_pretrained(folder)
    except Exception as error:  # transformers raises different types in different versions
        raise InvalidInput(f"{path}: model_type={model_type!r} is not one of transformers' models") from error

    def check(holds: bool, field: str, value, supported: str) -> None:
        require(holds, path, field, value, supported)

    text = "a model of text alone that decodes"
    check(not hf_config.is_encoder_decoder, "is_encoder_decoder", True, text)
    check(type(hf_config) in AutoModelForCausalLM._model_mapping, "model_type", model_type, text)
    check(not hf_config.sub_configs, "model_type", model_type, text)
    quantization = getattr(hf_config, "quantization_config", None)
    check(quantization is None, "quantization_config", quantization, "none: full-precision weights")
    others = sorted({*(getattr(hf_config, "layer_types", None) or ())} - LAYER_TYPES)
    check(not others, "layer_types", others, "attention that is causal, or causal within a window")
    model_class = AutoModelForCausalLM._model_mapping[type(hf_config)]
    replaceable = getattr(model_class, "_supports_attention_backend", False)
    check(replaceable, "model_type", model_type, "a model whose attention transformers lets replace")
    try:
        sizes = {field: getattr(hf_config, field, None) for field in SIZES}
        head_dim = getattr(hf_config, "head_dim", None)
    except Exception as error:  # a field that has no single value, as Gemma 4's head_dim
        raise InvalidInput(f"{path}: model_type={model_type!r} is not supported ({first_sentence(error)})") from error
    sizes["num_key_value_heads"] = sizes["num_key_value_heads"] or sizes["num_attention_heads"]
    sizes["intermediate_size"] = sizes["intermediate_size"] or 4 * hf_config.hidden_size  # for estimates of memory
    for field, size in sizes.items():
        check(isinstance(size, int) and size > 0, field, size, "a positive integer")
    vocab_size, hidden_size, intermediate_size, num_layers, heads, kv_heads, context_length = sizes.values()
    check(heads % kv_heads == 0, "num_key_value_heads", kv_heads, f"a divisor of {heads} query heads")
    rope = getattr(hf_config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":  # beyond it all angles change, also those of keys that are kept
        context_length = min(context_length, int(rope["original_max_position_embeddings"]))
    config = ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim or hidden_size // heads,
        context_length=context_length,
        tie_embeddings=bool(hf_config.tie_word_embeddings),
    )
    return config, hf_config


def load_library_model(
    folder: Path,
    config: ModelConfig,
    hf_config: PreTrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
    load_format: str,
) -> LibraryModel:
    """Build the model and fill it, from the folder's safetensors files or with random weights.

    Raise InvalidInput, one sentence, if weights are missing or too many, or if its attention cannot run here.
    """
    where, options = folder / "config.json", {"dtype": dtype, "attn_implementation": ASKING}
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what matters of its reports is an error here
    if load_format == "dummy":
        with torch.random.fork_rng(), device:
            torch.manual_seed(0)
            whole = AutoModelForCausalLM.from_config(hf_config, **options)
    else:
        whole = read_weights(folder, hf_config, options).to(device)
    whole.requires_grad_(False).eval()
    windows = check_calls(calls_of(whole, where), config, where)
    whole.set_attn_implementation(NAME)
    decoder = whole.get_decoder()
    whole.set_submodule(next(name for name, module in whole.named_modules() if module is decoder), NoDecoder())
    return LibraryModel(decoder, whole, config, windows).eval()


def read_weights(folder: Path, hf_config: PreTrainedConfig, options: dict) -> nn.Module:
    """Return the library's model, with the weights of the folder."""
    try:
        whole, info = AutoModelForCausalLM.from_pretrained(
            folder, config=hf_config, use_safetensors=True, output_loading_info=True, **options
        )
    except Exception as error:  # transformers raises different types in different versions
        raise InvalidInput(f"{folder}: transformers cannot load the weights ({first_sentence(error)})") from error
    for kind in ("missing", "unexpected"):
        if names := sorted(info[f"{kind}_keys"]):
            raise InvalidInput(f"{folder}: {counted(len(names), f'{kind} tensor')}, among them {names[0]}")
    return whole


@torch.inference_mode()
def calls_of(whole: nn.Module, where: Path) -> list[Call]:
    """Run one token through the model, and return how its layers call attention."""
    token = CALLS.set([])
    try:
        zero = torch.zeros(1, 1, dtype=torch.int64, device=whole.device)
        whole(input_ids=zero, position_ids=zero, use_cache=False)
        return CALLS.get()
    except InvalidInput as error:
        raise InvalidInput(f"{where}: this model cannot run here: {error}") from error
    except Exception as error:  # whatever a model does with a mask that is none
        reason = first_sentence(error)
        raise InvalidInput(f"{where}: this model does not run with attention from outside ({reason})") from error
    finally:
        CALLS.reset(token)


def check_calls(calls: list[Call], config: ModelConfig, where: Path) -> list[int | None]:
    """Return each layer's window. Raise InvalidInput if a layer asks for what `attend` does not do."""
    if [call.layer for call in calls] != list(range(config.num_layers)):
        layers = sorted({call.layer for call in calls})
        raise InvalidInput(
            f"{where}: of {config.num_layers} layers, those that attend are {layers}, and here each must, once: "
            "state-space layers and shared K and V are not supported"
        )
    for call in calls:
        if call.unusual:
            raise InvalidInput(
                f"{where}: layer {call.layer} attends with {', '.join(call.unusual)}, not supported here"
            )
        shape = (1, config.num_kv_heads, 1, config.head_dim)
        if any(tuple(one) != shape for one in call.shapes):
            found = " and ".join(str(tuple(one[1::2])) for one in call.shapes)
            raise InvalidInput(
                f"{where}: layer {call.layer} has K and V of {found} (heads, dimensions), and here all layers must "
                f"have the same, {shape[1::2]}"
            )
    return [call.window for call in calls]
