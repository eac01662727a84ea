"""Run a decoder of the transformers library behind the course's call, `hidden = model(token_ids, positions, attend)`.

The library calls attention by name. So this module registers a function of its own under a name, which hands q, k and v
to `attend`, and the library's model becomes one more model of the course: it gets the ragged batch as one sequence with
explicit positions, no cache and no mask. vLLM's transformers backend does the same.

A model that needs more than that would run, and answer slightly wrong. So each is checked when it is loaded. One token
runs through it, and each layer's call of attention is compared with what `attend` does. Then a few tokens run out of
order, as rows of a batch may, and must get the logits that the library's own attention gives them in order.
"""

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

from ..attention.window import windowed
from ..errors import InvalidInput, counted, shortened
from ..model import Attend, ModelConfig
from .config import SIZES, context_length, first_sentence, read_json, require

LAYER_TYPES = {"full_attention", "sliding_attention"}
# Arguments of attention that `attend` serves or need not see: windows are read from the mask.
KNOWN = {"scaling", "dropout", "is_causal", "sliding_window", "position_ids", "use_cache"}
NAME, ASKING = "course", "course_asking"  # the library's names of attention: to run a model, and to check it
TOKENS = 16  # for the check of a model


# A layer's call of attention, while a model is checked: layer, window, and (heads, dimensions) of q, k and v.
Call = tuple[int, int | None, tuple[tuple[int, int], ...]]

# The `attend` of the pass that runs in this thread, and each layer's window; or the list of calls of a check.
PASS: ContextVar[tuple[Attend, list[int | None]]] = ContextVar("pass")
CALLS: ContextVar[list[Call]] = ContextVar("calls")


class LibraryModel(nn.Module):
    """A transformers decoder with the interface of `common.model.Transformer`."""

    def __init__(self, whole: PreTrainedModel, config: ModelConfig, windows: list[int | None]):
        """Take `whole` apart. config: its sizes; windows: of each layer."""
        super().__init__()
        name, decoder = [pair for pair in whole.named_modules() if isinstance(pair[1], PreTrainedModel)][-1]
        whole.set_submodule(name, NoDecoder())
        self.decoder, self.head, self.config, self.windows = decoder, whole, config, windows

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

    `attend` scales by 1 / sqrt(D); another scaling is multiplied into the queries. Where values have fewer dimensions
    than keys, as in DeepSeek-V3, zeros make up the rest.
    """
    attend, windows = PASS.get()
    size = value.shape[-1]
    value = F.pad(value, (0, key.shape[-1] - size))
    # Kernels read strides, and `contiguous` leaves those of a single token as they come.
    q, k, v = (rows[0].transpose(0, 1).clone(memory_format=torch.contiguous_format) for rows in (query, key, value))
    if scaling is not None and not math.isclose(factor := scaling * math.sqrt(q.shape[-1]), 1.0):
        q = q * factor
    with windowed(windows[module.layer_idx]):
        return attend(module.layer_idx, q, k, v)[None, ..., :size], None


def note_call(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: int | None, **options
) -> tuple[Tensor, None]:
    """Note a layer's call, and return queries in place of results. Raise InvalidInput if it asks for more."""
    given = (name for name, option in options.items() if option is not None and option is not False)
    if unknown := sorted({*given} - KNOWN):
        raise InvalidInput(f"layer {module.layer_idx} attends with {', '.join(unknown)}, which `attend` does not do")
    shapes = tuple((rows.shape[1], rows.shape[3]) for rows in (query, key, value))
    CALLS.get().append((module.layer_idx, attention_mask, shapes))
    return query.transpose(1, 2)[..., : value.shape[-1]], None


def window_of_mask(mask_function: Callable[..., Tensor], config: PreTrainedConfig, **_) -> int | None:
    """Return the window of a mask, None for a causal one. Raise InvalidInput if it is neither.

    mask_function(batch, head, query, key) says whether a query's position sees a key's; try the last two positions.
    """
    last = config.max_position_embeddings
    positions, keys = torch.tensor([[last - 1], [last]]), torch.arange(last + 1)
    seen = torch.as_tensor(mask_function(0, 0, positions, keys)).expand(2, last + 1)
    window, causal = int(seen[1].sum()), keys <= positions
    if torch.equal(seen, causal):
        return None
    if torch.equal(seen, causal & (keys > positions - window)):
        return window
    raise InvalidInput("its attention is neither causal nor a sliding window")


AttentionInterface.register(NAME, attend_by_course)  # without a mask: the library builds none for it
AttentionInterface.register(ASKING, note_call)
AttentionMaskInterface.register(ASKING, window_of_mask)


def read_library_config(folder: Path) -> tuple[ModelConfig, PreTrainedConfig]:
    """Return the sizes of `folder/config.json` or of a GGUF file, and the library's own configuration.

    Raise FileNotFoundError, or InvalidInput with the file and the field, for a model that cannot run here.
    """
    if folder.is_dir():
        path, field = folder / "config.json", "model_type"
        model_type = read_json(path).get(field)
    else:
        path, field, model_type = folder, "general.architecture", gguf_architecture(folder)
    try:
        hf_config = AutoConfig.from_pretrained(**library_source(folder))
    except Exception as error:  # transformers raises different types in different versions
        raise InvalidInput(f"{path}: {field}={shortened(model_type)} is not one of transformers' models") from error
    check = partial(require, path)
    text = "a model of text alone that decodes"
    check(not hf_config.is_encoder_decoder, "is_encoder_decoder", True, text)
    check(type(hf_config) in AutoModelForCausalLM._model_mapping, "model_type", model_type, text)
    check(not hf_config.sub_configs, "sub_configs", sorted(hf_config.sub_configs), "a model of text, with one config")
    quantization = getattr(hf_config, "quantization_config", None)
    check(quantization is None, "quantization_config", quantization, "none: full-precision weights")
    others = sorted({*(getattr(hf_config, "layer_types", None) or ())} - LAYER_TYPES)
    check(not others, "layer_types", others, "attention that is causal, or causal within a window")
    try:
        sizes = {field: getattr(hf_config, field, None) for field in SIZES}
        head_dim = getattr(hf_config, "head_dim", None)
    except Exception as error:  # a field that has no single value, as Gemma 4's head_dim
        raise InvalidInput(f"{path}: model_type={model_type!r} is not supported ({first_sentence(error)})") from error
    sizes["num_key_value_heads"] = sizes["num_key_value_heads"] or sizes["num_attention_heads"]
    if not isinstance(sizes["intermediate_size"], int):  # for estimates of memory
        sizes["intermediate_size"] = 4 * (sizes["hidden_size"] or 0)
    for field, size in sizes.items():
        check(isinstance(size, int) and size > 0, field, size, "a positive integer")
    vocab_size, hidden_size, intermediate_size, num_layers, heads, kv_heads, _ = sizes.values()
    check(heads % kv_heads == 0, "num_key_value_heads", kv_heads, f"a divisor of {heads} query heads")
    rope = getattr(hf_config, "rope_parameters", None) or {}
    context = context_length(hf_config, rope)
    if rope.get("rope_type") == "longrope":  # Beyond this length all angles change, also those of keys in a cache.
        context = min(context, int(rope["original_max_position_embeddings"]))
    config = ModelConfig(
        vocab_size, hidden_size, intermediate_size, num_layers, heads, kv_heads, head_dim or hidden_size // heads,
        context, tie_embeddings=bool(getattr(hf_config, "tie_word_embeddings", False)),
    )  # fmt: skip
    return config, hf_config


def library_source(folder: Path) -> dict[str, Any]:
    """Return what from_pretrained takes for a folder, or for a GGUF file."""
    if folder.is_dir():
        return {"pretrained_model_name_or_path": folder}
    return {"pretrained_model_name_or_path": folder.parent, "gguf_file": folder.name}


def gguf_architecture(file: Path) -> str:
    """Return the architecture of a GGUF file. Raise InvalidInput for a scaling, which transformers would pass over."""
    from . import gguf

    reader = gguf.Reader(file)
    family = reader.values.get("general.architecture")
    scaling = reader.values.get(f"{family}.rope.scaling.type", "none")
    require(file, scaling == "none", f"{family}.rope.scaling.type", scaling, "none")
    tensors = [tensor.name for tensor in reader.tensors if tensor.name.startswith("rope_")]
    require(file, not tensors, "tensors", tensors, "no scaling")
    return family


def load_library_model(
    folder: Path,
    config: ModelConfig,
    hf_config: PreTrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
    load_format: str,
) -> LibraryModel:
    """Build the model and fill it, from the folder's safetensors files or with random weights.

    Raise InvalidInput, one sentence, if weights are missing or too many, or if the model cannot run here.
    """
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # The reports that matter are errors here.
    whole = library_model(folder, hf_config, device, dtype, load_format)
    try:
        return checked_model(whole.requires_grad_(False).eval(), config)
    except Exception as error:  # A model's code may raise anything with another attention.
        reason = error if isinstance(error, InvalidInput) else f"its code does not allow it ({first_sentence(error)})"
        where = folder / "config.json" if folder.is_dir() else folder  # a GGUF file
        raise InvalidInput(f"{where}: this model cannot run here: {reason}") from error


def library_model(
    folder: Path, hf_config: PreTrainedConfig, device: torch.device, dtype: torch.dtype, load_format: str
) -> PreTrainedModel:
    """Return the library's model with the weights of the folder, or random ones."""
    try:
        if load_format == "dummy":
            with torch.random.fork_rng(), device:
                torch.manual_seed(0)
                return AutoModelForCausalLM.from_config(hf_config, dtype=dtype)
        whole, info = AutoModelForCausalLM.from_pretrained(
            **library_source(folder), config=hf_config, use_safetensors=True, output_loading_info=True, dtype=dtype
        )
    except Exception as error:  # transformers raises different types in different versions
        raise InvalidInput(f"{folder}: transformers cannot load this model ({first_sentence(error)})") from error
    for kind in ("missing", "unexpected"):
        if names := sorted(info[f"{kind}_keys"]):
            raise InvalidInput(f"{folder}: {counted(len(names), f'{kind} tensor')}, among them {names[0]}")
    return whole.to(device)


@torch.inference_mode()
def checked_model(whole: PreTrainedModel, config: ModelConfig) -> LibraryModel:
    """Return `whole` as a model of the course, with the sizes that its calls of attention have.

    Raise InvalidInput if a call asks for what `attend` does not do, or if logits are not those of the library. A few
    tokens may differ: where two experts are as good as each other, rounding chooses.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (TOKENS,), generator=generator).to(whole.device)
    positions = torch.randperm(TOKENS, generator=generator).to(whole.device)
    expected = whole(input_ids=ids[None], use_cache=False).logits[0, positions].float()
    config, windows = sizes_and_windows(calls_of(whole, ids[:1]), config)
    whole.set_attn_implementation(NAME)
    model = LibraryModel(whole, config, windows).eval()

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rows[positions.argsort()].transpose(0, 1) for rows in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1)[positions]

    difference = model.logits(model(ids[positions], positions, attend)) - expected
    error = float((difference.norm(dim=1) / expected.norm(dim=1)).median())
    if not error < torch.finfo(whole.dtype).eps ** 0.5:
        raise InvalidInput(f"its logits differ by {error:.1%} from those with the library's own attention")
    return model


def calls_of(whole: PreTrainedModel, ids: Tensor) -> list[Call]:
    """Run tokens `ids[N]` through the model, and return how its layers call attention."""
    whole.set_attn_implementation(ASKING)
    token = CALLS.set([])
    try:
        whole(input_ids=ids[None], use_cache=False)
        return CALLS.get()
    finally:
        CALLS.reset(token)


def sizes_and_windows(calls: list[Call], config: ModelConfig) -> tuple[ModelConfig, list[int | None]]:
    """Return the config with the sizes of these calls, and each layer's window. Raise InvalidInput if sizes differ."""
    if not calls:
        raise InvalidInput("transformers does not let its attention be replaced")
    layers, windows, shapes = (list(each) for each in zip(*calls, strict=True))
    if layers != list(range(config.num_layers)):
        raise InvalidInput(
            f"{counted(len({*layers}), 'layer')} of {config.num_layers} attend, {counted(len(layers), 'time')} in all, "
            "and here each must, once"
        )
    if len({*shapes}) > 1:
        raise InvalidInput(f"its layers have Q, K and V of different (heads, dimensions): {sorted({*shapes})}")
    (heads, head_dim), (kv_heads, _), _ = shapes[0]
    return replace(config, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim), windows
