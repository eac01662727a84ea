"""Load a checkpoint, given by name or folder: model, tokenizer and config, ready to run.

A checkpoint in Hugging Face format is a folder: `config.json` (sizes and options), `model.safetensors` (the weights,
or an index and several shards), `tokenizer.json`, and `generation_config.json` (which tokens end a text). config.py
reads the sizes, weights.py fills the model, device.py chooses device and dtype. A GGUF file is all of these in one,
which gguf.py reads. any_model.py loads what common/model.py does not implement, with the transformers library's own
model.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..errors import InvalidInput
from ..fused import choose_model, why_not_numba
from ..model import ModelConfig, Transformer
from ..packages import is_packaged, packaged_model
from ..process import keep_freed_memory
from .config import first_sentence, read_config, read_eos_token_ids, read_json, read_sampling_defaults
from .device import choose_device
from .shard import WHOLE, Shard
from .weights import copy_weights, empty_model, quantize, randomize_weights

KV_DTYPES = ("auto", "int8")
BITS = ("int8", "int4")
QUANTIZATIONS = ("auto", *BITS, "none")
MODEL_IMPLS = ("auto", "course", "transformers")
CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"


@dataclass
class Loaded:
    """The input of every engine. `tokenizer` is a transformers fast tokenizer, or None if the checkpoint has none.

    `config` describes the part of the model in this process: if `shard` is not the whole, fewer heads.
    """

    model: Transformer | None
    tokenizer: Any
    config: ModelConfig
    eos_token_ids: frozenset[int]
    name: str
    device: torch.device
    dtype: torch.dtype
    shard: Shard = WHOLE
    sampling_defaults: dict[str, float] = field(default_factory=dict)  # of the checkpoint, for servers
    reserved_bytes: int = 0  # of the GPU's memory, for what is made after the engine, such as graphs
    note: str = ""  # if the model is transformers' own: one line that says why
    folder: Path | None = None  # the folder or the file that the weights were loaded from
    quantization: str = "none"  # as it was asked for

    @property
    def kv_dtype(self) -> torch.dtype:
        """Return the type of K and V in pages, whose rows have `config.kv_width` elements."""
        return torch.int8 if self.config.kv_int8 else self.dtype


def load_model(
    name_or_path: str | os.PathLike | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    load_format: str = "auto",
    fused: bool | str = "auto",
    shard: Shard = WHOLE,
    model_impl: str = "auto",
    kv_dtype: str = "auto",
    quantization: str = "auto",
) -> Loaded:
    """Load a checkpoint for inference: no gradients, evaluation mode.

    name_or_path: None or "target" for the bundled checkpoint, "draft" for the smaller one that speculates for it, a
        folder, a GGUF file, a name in checkpoints/packages.toml, which pip fetches, the name of a bundled config (with
        load_format="dummy"), or a Hugging Face Hub id.
    device, dtype: see `choose_device`. fused: which kernels of common/fused to use, see `choose_model`.
    load_format: "auto" reads the weights; "dummy" fills the model with random ones from the config alone, so that a
        real size can be timed where nothing can be downloaded; "none" builds no model, for a process whose workers do.
    shard: the part of the model to load, for a process that shares it with others.
    model_impl: "course" is common/model.py, "transformers" the library's own model (any_model.py); "auto" is the
        course's, unless it does not implement what config.json says.
    kv_dtype: what pages of stages 05 to 08 hold K and V in: "auto" is the model's type, "int8" see attention/int8.py.
    quantization: "int8" or "int4" rounds weights to 8 or 4 bits, on a CPU; "auto" keeps those of a GGUF file that has
        them there; "none" makes all of them `dtype`.

    Raise FileNotFoundError or InvalidInput, one sentence with the file and the field or tensor at fault.
    """
    if load_format not in ("auto", "dummy", "none"):
        raise InvalidInput(f"load_format={load_format!r} is unknown: use 'auto', 'dummy' or 'none'")
    if kv_dtype not in KV_DTYPES:
        raise InvalidInput(f"kv_dtype={kv_dtype!r} is unknown: use {' or '.join(KV_DTYPES)}")
    device, dtype, _ = choose_device(device, dtype)
    check_quantization(quantization, device, dtype, shard.ranks)
    if device.type == "cpu":
        keep_freed_memory()
    folder = find_checkpoint(name_or_path, with_weights=load_format == "auto")
    config, library_config, note = choose_implementation(folder, model_impl)
    config, name = replace(config, kv_int8=kv_dtype == "int8"), str(name_or_path or "bundled")
    if library_config is not None and shard.ranks > 1:
        raise InvalidInput(f"{name}: only common/model.py is split, and this is {note}: use one rank")
    if library_config is not None and quantization in BITS:
        raise InvalidInput(f"{name}: only common/model.py is quantised, and this is {note}")
    tokenizer = load_tokenizer(folder)
    eos_token_ids = read_eos_token_ids(folder)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        eos_token_ids |= {tokenizer.eos_token_id}  # some chat checkpoints name their end of turn only here
    model, defaults = None, read_sampling_defaults(folder)
    if load_format != "none" and library_config is not None:
        from .any_model import load_library_model

        model = load_library_model(folder, config, library_config, device, dtype, load_format)
    elif load_format != "none":
        model = empty_model(config, device, dtype, shard)
        if load_format == "auto":
            keeps_codes = why_not_codes(device, dtype, shard.ranks) is None
            copy_weights(model, folder, shard, quantization if keeps_codes else "none")
        else:
            randomize_weights(model, shard)
            if quantization in BITS:
                quantize(model, quantization)
        model = choose_model(model, fused)
    config = config if model is None else model.config
    origin = {"note": note, "folder": folder if load_format == "auto" else None, "quantization": quantization}
    return Loaded(model, tokenizer, config, eos_token_ids, name, device, dtype, shard, defaults, **origin)


def check_quantization(quantization: str, device: torch.device, dtype: torch.dtype, ranks: int) -> None:
    """Raise InvalidInput if weights cannot be quantised so here."""
    if quantization not in QUANTIZATIONS:
        raise InvalidInput(f"quantization={quantization!r} is unknown: use {', '.join(QUANTIZATIONS)}")
    reason = why_not_codes(device, dtype, ranks)
    if quantization in BITS and reason is not None:
        raise InvalidInput(f"--quantization {quantization} needs kernels that cannot run here: {reason}; leave it out")


def why_not_codes(device: torch.device, dtype: torch.dtype, ranks: int) -> str | None:
    """Return why no kernel reads weights of 8 and 4 bits here, None if one does: without it, each step unpacks them."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16) or ranks > 1:
        return "they are for float32 and bfloat16 on a CPU, and for one rank"
    return why_not_numba()


def choose_implementation(folder: Path, model_impl: str) -> tuple[ModelConfig, Any, str]:
    """Return the config, and for a model of the transformers library its own config and one line that says why.

    model_impl: as for `load_model`. Raise InvalidInput for a model that the one chosen cannot run.
    """
    if model_impl not in MODEL_IMPLS:
        raise InvalidInput(f"model_impl={model_impl!r} is unknown: use {', '.join(MODEL_IMPLS)}")
    because = "as asked"
    if model_impl != "transformers":
        try:
            return read_config(folder), None, ""
        except InvalidInput as refusal:
            if model_impl == "course" or (folder.is_file() and "general.architecture=" not in str(refusal)):
                raise  # transformers would ignore what a GGUF file has beyond model.py
            because = str(refusal)
    from .any_model import read_library_config  # It imports transformers' models, which takes 2 s.

    return *read_library_config(folder), f"model=transformers ({because})"


def find_checkpoint(name: str | os.PathLike | None, with_weights: bool) -> Path:
    """Return the folder or GGUF file of a name as in `load_model`, downloading it if necessary.

    With HF_HUB_OFFLINE=1 the Hub is not asked: what it has sent before is used.
    """
    if name in (None, "target", "draft"):
        return CHECKPOINTS / (name or "target")
    folder = Path(os.path.expanduser(name))
    if folder.is_dir() or folder.suffix == ".gguf":
        if not folder.exists():
            raise FileNotFoundError(f"{folder}: no such file")
        return folder
    if packaged := packaged_model(str(name)):
        return packaged
    configs = {path.name.lower(): path for path in (CHECKPOINTS / "configs").glob("*")}
    bundled = configs.get(str(name).lower())
    if bundled is not None:
        if with_weights:
            raise InvalidInput(
                f"{name} is bundled as a config without weights: use load_format='dummy' (--load-format dummy)"
            )
        return bundled
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.jinja", "*.model", "*.txt"] + (["*.safetensors"] if with_weights else [])
    # A repository may hold the same weights again in another layout: Mistral's "consolidated", folders per format.
    repeated = ["consolidated*", "*/*"]
    try:
        return Path(snapshot_download(str(name), allow_patterns=wanted, ignore_patterns=repeated))
    except Exception as error:  # no network, no such repository, no permission, not a valid id
        reason = first_sentence(error)
        raise FileNotFoundError(
            f"{name}: no such folder, and no download from the Hugging Face Hub ({reason})"
        ) from error


def load_tokenizer(folder: Path) -> Any:
    """Return the transformers fast tokenizer of a folder or a GGUF file, or None if it has none."""
    try:
        tokenizer = read_gguf_tokenizer(folder) if folder.is_file() else read_tokenizer(folder)
    except InvalidInput:
        raise
    except Exception as error:  # transformers raises different types in different versions
        raise InvalidInput(f"{folder}: the tokenizer cannot be read ({first_sentence(error)})") from error
    if tokenizer is not None:  # transformers would warn of prompts longer than the context, which engines refuse
        tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def read_gguf_tokenizer(path: Path) -> Any:
    """Return a GGUF file's tokenizer. That of a packaged model is kept beside it: to convert one takes a second."""
    from transformers import __version__

    from .gguf import build_tokenizer

    if not is_packaged(path):
        return build_tokenizer(path)
    kept = path.parent / f"tokenizer-{__version__}"
    with suppress(Exception):  # what is kept may be damaged, and transformers raises different types
        if tokenizer := read_tokenizer(kept):
            return tokenizer
    tokenizer = build_tokenizer(path)
    with suppress(OSError), TemporaryDirectory(dir=path.parent) as folder:
        tokenizer.save_pretrained(folder)
        os.rename(folder, kept)
    return tokenizer


def read_tokenizer(folder: Path) -> Any:
    if not any((folder / file).exists() for file in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    config = folder / "tokenizer_config.json"
    if config.is_file() and read_json(config).get("tokenizer_class") == "TokenizersBackend":
        from transformers import PreTrainedTokenizerFast as Tokenizer  # The same class: finding it by Auto takes 2 s.
    else:
        from transformers import AutoTokenizer as Tokenizer
    return Tokenizer.from_pretrained(folder)


def chat_prompt(tokenizer, text: str, system: str = "") -> list[int]:
    """Return the token ids of one user message in the chat template, up to where the assistant's answer begins.

    system: the message before it, if there is one.
    """
    if tokenizer is None or tokenizer.chat_template is None:
        raise InvalidInput("this model has no chat template: leave out --chat")
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    # Ids, not text: the template writes special tokens, and tokenizing its text would add them a second time.
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
