"""Read config.json of a Hugging Face checkpoint into a ModelConfig, and refuse what common/model.py cannot run.

`transformers` parses any file that needs it: it knows every older spelling of a field (`rope_scaling`, `rope_theta`,
`type`) and every family's defaults. This module refuses. A checkpoint with an option that `common/model.py` does not
implement would still load, run, and answer slightly wrong, the worst failure a server can have. So every such option is
refused by name. Production engines keep a registry of model classes instead (vLLM's `ModelRegistry`) and refuse
architectures that are not in it.
"""

import json
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from ..errors import InvalidInput, first_sentence, require
from ..model import ModelConfig

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# rope_type -> the numbers that it needs, beside rope_theta
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # the same as in vLLM
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
# A Llama file that has these fields, of these types, and no others uses no default and no older spelling.
COMPLETE_LLAMA = dict.fromkeys((*SIZES, "head_dim"), int) | {
    "hidden_act": str,
    "attention_bias": bool,
    "mlp_bias": bool,
    "rms_norm_eps": float,
    "rope_parameters": dict,
    "tie_word_embeddings": bool,
}
UNREAD = {
    "architectures", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "pad_token_id",
    "pretraining_tp", "transformers_version", "use_cache",
}  # fmt: skip


def read_json(path: Path) -> dict:
    """Return the object in a JSON file. Raise FileNotFoundError without the file, InvalidInput without an object."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{path}: contains a JSON {type(value).__name__}, not an object")
    return value


def read_eos_token_ids(folder: Path) -> frozenset[int]:
    """Return the tokens that end a text, empty if no file names any. Raise InvalidInput for anything but token ids.

    Chat checkpoints have several and list them in generation_config.json, so that file comes first. Read the raw files:
    if config.json names none, transformers would return the family's default.
    """
    if folder.is_file():
        from . import gguf

        return gguf.read_eos_token_ids(folder)
    for path in (folder / "generation_config.json", folder / "config.json"):
        ids = read_json(path).get("eos_token_id") if path.exists() else None
        if ids is not None:
            ids = ids if isinstance(ids, list) else [ids]
            valid = all(isinstance(token_id, int) and token_id >= 0 for token_id in ids)
            require(path, valid, "eos_token_id", ids, "a token id or a list of them")
            return frozenset(ids)
    return frozenset()


def read_sampling_defaults(folder: Path) -> dict[str, float]:
    """Return the sampling parameters that generation_config.json recommends, for requests that give none."""
    path = folder / "generation_config.json"
    given = read_json(path) if path.exists() else {}
    return {name: given[name] for name in SAMPLING_DEFAULTS if given.get(name) is not None}


def read_config(folder: Path) -> ModelConfig:
    """Return the ModelConfig of `folder/config.json`, or of a GGUF file.

    Raise FileNotFoundError or InvalidInput with the file's path.
    """
    if folder.is_file():
        from . import gguf

        reader = gguf.Reader(folder)
        config = model_config(SimpleNamespace(**gguf.read_fields(folder, reader)), str(folder))
        gguf.check_sizes(folder, reader, config)
        return config
    path = folder / "config.json"
    # Read from the raw file: for an unknown model type, transformers raises a page of advice.
    raw = read_json(path)
    model_type = raw.get("model_type")
    require(path, model_type in MODEL_TYPES, "model_type", model_type, ", ".join(MODEL_TYPES))
    if is_complete_llama(raw):
        return model_config(SimpleNamespace(**raw), str(path))  # This saves every process an import of 2 s.
    from transformers import AutoConfig

    try:
        hf_config = AutoConfig.from_pretrained(folder)
    except Exception as error:  # transformers raises different types in different versions
        raise InvalidInput(f"{path}: not accepted by transformers ({first_sentence(error)})") from error
    return model_config(hf_config, str(path))


def is_complete_llama(raw: dict) -> bool:
    """Return whether transformers would read this file as it stands: further fields may change what others mean."""
    types = {field: type(value) for field, value in raw.items() if field not in {*UNREAD, "model_type"}}
    if raw["model_type"] != "llama" or types != COMPLETE_LLAMA:
        return False
    rope = raw["rope_parameters"]
    return rope.keys() == {"rope_type", "rope_theta"} and rope["rope_type"] == "default"


def model_config(hf_config, where: str = "config.json") -> ModelConfig:
    """Translate a transformers configuration of one of MODEL_TYPES.

    Raise InvalidInput, one sentence with `where` and the field, for anything that common/model.py does not implement.
    """
    check = partial(require, where)
    family = hf_config.model_type
    check(family in MODEL_TYPES, "model_type", family, ", ".join(MODEL_TYPES))
    for field in SIZES:
        size = getattr(hf_config, field)
        check(isinstance(size, int) and size > 0, field, size, "a positive integer")
    num_heads, num_kv_heads = hf_config.num_attention_heads, hf_config.num_key_value_heads
    head_dim = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // num_heads
    check(num_heads % num_kv_heads == 0, "num_key_value_heads", num_kv_heads, f"a divisor of {num_heads} query heads")
    check(head_dim > 0 and head_dim % 2 == 0, "head_dim", head_dim, "a positive even number")
    check(hf_config.hidden_act == "silu", "hidden_act", hf_config.hidden_act, "'silu'")
    check(not getattr(hf_config, "mlp_bias", False), "mlp_bias", True, "false")
    quantization = getattr(hf_config, "quantization_config", None)
    check(quantization is None, "quantization_config", quantization, "none: full-precision weights")
    if family == "mistral":  # every layer has the window; it changes nothing if it spans the whole context
        window, context = hf_config.sliding_window, hf_config.max_position_embeddings
        check(window is None or window >= context, "sliding_window", window, f"null, or at least {context}")
    other_layers = sorted(set(getattr(hf_config, "layer_types", None) or ()) - {"full_attention"})
    check(not other_layers, "layer_types", other_layers, "'full_attention' (for Qwen: use_sliding_window false)")

    check(is_positive(hf_config.rms_norm_eps), "rms_norm_eps", hf_config.rms_norm_eps, "a positive number")
    rope = rope_parameters(hf_config, where)
    # Llama and Qwen3 have one switch for all four projections; Qwen2 has a bias on Q, K and V and no switch.
    attention_bias = family in ("llama", "qwen3") and hf_config.attention_bias
    return ModelConfig(
        vocab_size=hf_config.vocab_size,
        hidden_size=hf_config.hidden_size,
        intermediate_size=hf_config.intermediate_size,
        num_layers=hf_config.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=context_length(hf_config, rope),
        rms_norm_eps=hf_config.rms_norm_eps,
        rope=rope,
        tie_embeddings=hf_config.tie_word_embeddings,
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        qk_norm=family == "qwen3",
    )


def is_positive(value) -> bool:
    return isinstance(value, (int, float)) and 0 < value < math.inf  # Python's JSON has Infinity and NaN


def context_length(hf_config, rope: dict) -> int:
    """Return the context length in tokens. With YaRN it is the original one times the factor; files may name either.

    With linear scaling they name the original one.
    """
    length = hf_config.max_position_embeddings
    original = {"yarn": rope.get("original_max_position_embeddings"), "linear": length}.get(rope.get("rope_type"))
    return int(original * rope["factor"]) if original else length


def rope_parameters(hf_config, where: str) -> dict:
    """Return the rotary parameters for `common.model.rope_frequencies`. Raise InvalidInput if it has no such kind."""
    rope = dict(hf_config.rope_parameters or {})
    per_layer = sorted(name for name, value in rope.items() if isinstance(value, dict))
    require(where, not per_layer, "rope_parameters", per_layer, "one set for all layers")
    kind = rope.get("rope_type")
    require(where, kind in ROPE_TYPES, "rope_type", kind, ", ".join(ROPE_TYPES))
    for field in ("rope_theta", *ROPE_TYPES[kind]):
        value = rope.get(field)
        require(where, is_positive(value), field, value, "a positive number")
    partial = rope.get("partial_rotary_factor")
    require(where, partial in (None, 1), "partial_rotary_factor", partial, "1")
    return rope
