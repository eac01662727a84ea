"""A model that writes a text of the test's choice, whatever it is asked: what a server makes of an answer."""

from dataclasses import replace

import torch

from common.engine import AroundModel
from common.stages import load_engine
from tests.helpers.serving_openai import openai_server


class Scripted(AroundModel):
    """Stands before a model: greedy, it writes the tokens of `script` behind a prompt, and then the end.

    It keeps the text of the last prompt.
    """

    def __init__(self, loaded):
        self.model, self.loaded, self.end = loaded.model, loaded, min(loaded.eos_token_ids)
        self.prompt, self.script = "", []
        self.last = 0  # the place of the prompt's last token

    def write(self, text: str | list[int]) -> None:
        tokenizer = self.loaded.tokenizer
        self.script = tokenizer(text, add_special_tokens=False)["input_ids"] if isinstance(text, str) else text

    def __call__(self, token_ids, positions, attend):
        if len(token_ids) > 1:  # a prompt, in one step
            self.last, self.prompt = int(positions[-1]), self.loaded.tokenizer.decode(token_ids)
        return positions[:, None].float()

    def logits(self, hidden):
        """Return the logits of one row, [1, 1] -> [1, V]."""
        place = int(hidden[0, 0]) - self.last
        scores = torch.zeros(len(hidden), self.loaded.config.vocab_size)
        scores[:, self.script[place] if place < len(self.script) else self.end] = 100.0
        return scores


def scripted_server(loaded, *options: str):
    """Return a server of stage 04 for one request at a time; `service.engine.model.write(text)` sets its answer."""
    model = Scripted(loaded)
    engine = load_engine("04")(replace(loaded, model=model), max_running=1, token_budget=4096)
    return openai_server("04", loaded, *options, engine=engine)
