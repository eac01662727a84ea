"""The reference for every stage's tokens: `generate` of the transformers library, greedy, in float32."""

from collections.abc import Sequence
from pathlib import Path

import torch

from .loader import find_checkpoint
from .loader.config import read_config
from .loader.weights import NoInitialization, stored_tensors


class Reference:
    """A checkpoint in transformers' own model class, in float32. name: as for `load_model`."""

    def __init__(self, name: str | None = None, device: torch.device | str = "cpu"):
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        folder = find_checkpoint(None if name == "bundled" else name, with_weights=True)
        if folder.is_file():
            self.model = read_gguf(folder)
        else:
            self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model.to(device).eval()

    @torch.inference_mode()
    def generate(
        self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = False, use_cache: bool = True
    ) -> list[int]:
        """Return the greedy output tokens for one prompt of token ids, an end-of-sequence token included."""
        inputs = torch.tensor([list(prompt)], device=self.model.device)
        stopping = {"eos_token_id": None, "min_new_tokens": max_tokens} if ignore_eos else {}
        output = self.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max_tokens,
            do_sample=False,
            use_cache=use_cache,
            **stopping,
        )
        return output[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def generate_like(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """Return what `generate` gives for as many tokens as the answer has; faster if that is the answer itself.

        One pass over both shows it: each token is the likeliest after those before it, and only the last may be an end.
        """
        token_ids = torch.tensor([[*prompt, *answer]], device=self.model.device)
        likeliest = self.model(token_ids).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
        end = self.model.generation_config.eos_token_id  # None, a number or several
        same = likeliest == answer and not {*answer[:-1]} & {*(end if isinstance(end, list) else [end])}
        return likeliest if same else self.generate(prompt, len(answer))

    @torch.inference_mode()
    def next_logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the scores of the token after `token_ids`: `[V]` in float32."""
        return self.model(torch.tensor([list(token_ids)], device=self.model.device)).logits[0, -1]


def read_gguf(path: Path) -> torch.nn.Module:
    """Return transformers' own model of a GGUF file, with its weights in float32.

    transformers can read the file by itself, in half a minute where this takes seconds.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from .loader.gguf import Reader, read_fields

    with NoInitialization():
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**read_fields(path, Reader(path))), dtype=torch.float32
        )
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for _, name, tensor in stored_tensors(path, read_config(path)):
            for rows, values in tensor.pieces():
                parameters[name][rows] = values
    return model
