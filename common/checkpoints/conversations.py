"""Let a model write its own questions and answers, with its likeliest next tokens: what a drafter learns from.

A drafter must guess what its target says, so it learns on what the target says. The target also writes the questions:
it continues the opening of a user's turn (Magpie: Xu et al., 2024). Some turns begin with words of OPENINGS, so that
there are texts to repeat, code and stories among them.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from torch import Tensor

from common.demo import bar
from common.errors import InvalidInput
from common.loader import Loaded
from common.model import Transformer
from common.request import Request
from common.sampling import SampledToken, SamplerOutput, SamplingParams
from common.stages import load_engine
from common.terminal import StatusLine

from .train import causal_attention

SHARD = 32  # conversations in a file
AT_ONCE = {"cpu": 64, "cuda": 512}  # requests
CANDIDATES = 64  # tokens that may be drawn
LIKELIEST = 8  # tokens of the target's distribution that are kept; all others together have a tenth of the probability
QUESTION_TOKENS, ANSWER_TOKENS = 120, 256
QUESTIONS = (1, 1, 2)  # in a conversation, equally often
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)  # of answers, equally often
OPENINGS = (
    *[""] * 8, "What", "How", "Why", "Can you", "Hi", "Explain", "Give me a list of", "Tell me a story about",
    "Write a Python function", "Fix this code:\n\n```python\n", "Write an email", "Repeat this text word for word:\n\n",
    "Correct the mistakes in this text:\n\n", "Rewrite this sentence:", "Summarize this text:\n\n", "Quote",
)  # fmt: skip
# For a model without a chat template
PLAIN = "{% for message in messages %}{{ '\n' + message['content'] + '\n' }}{% endfor %}"
MARK = "\ue000"  # a private-use character that stands for a turn's text


def hidden_states(model: Transformer, texts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Run a model over whole texts of token ids, laid end to end: `[N, hidden_size]`."""
    lengths, attend_alone = [len(text) for text in texts], causal_attention(1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
        return torch.cat([attend_alone(layer, *part) for part in parts])

    positions = torch.cat([torch.arange(length) for length in lengths])
    return model(torch.cat(list(texts)).to(device), positions.to(device), attend)


class Conversation:
    """Questions and answers in turn. Its openings and seeds depend on its number alone."""

    def __init__(self, tokenizer, number: int):
        self.tokenizer, self.number = tokenizer, number
        self.rng = Random(f"conversation/{number}")
        self.turns = 2 * self.rng.choice(QUESTIONS)
        self.messages: list[dict[str, str]] = []
        self.opening = ""

    def prompt(self) -> list[int]:
        """Return the tokens so far, up to where the next turn's text begins, or after its opening."""
        if len(self.messages) % 2:
            self.opening = ""
            return self.tokens(self.text(add_generation_prompt=True))
        self.opening = self.rng.choice(OPENINGS)
        self.messages.append({"role": "user", "content": MARK})
        before = self.text().split(MARK)[0]
        self.messages.pop()
        return self.tokens(before + self.opening)

    def params(self) -> SamplingParams:
        """Return how the next turn is sampled. min_p drops the unlikeliest tokens, which make questions nonsense."""
        seed = 16 * self.number + len(self.messages)
        if len(self.messages) % 2:
            temperature = self.rng.choice(TEMPERATURES)
            return SamplingParams(max_tokens=ANSWER_TOKENS, temperature=temperature, top_k=CANDIDATES, seed=seed)
        return SamplingParams(max_tokens=QUESTION_TOKENS, temperature=1.0, top_k=CANDIDATES, min_p=0.05, seed=seed)

    def append(self, text: str) -> None:
        role = "assistant" if len(self.messages) % 2 else "user"
        self.messages.append({"role": role, "content": self.opening + text})

    def text(self, **options) -> str:
        options["chat_template"] = self.tokenizer.chat_template or PLAIN
        return self.tokenizer.apply_chat_template(self.messages, tokenize=False, **options)

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


def draw_candidates(requests: Sequence[Request], logits: Tensor) -> SimpleNamespace:
    """Draw one token for each request among the likeliest of `logits[B, V]`, as an engine's `draw` does among all.

    The sampler then passes over these probabilities alone, ten times in float64, and not over all V.
    """
    scores, token_ids = logits.topk(min(CANDIDATES, logits.shape[-1]))
    chosen = token_ids.gather(-1, SamplerOutput(scores, requests).token_ids[:, None]).flatten()
    return SimpleNamespace(token_ids=chosen, tokens=lambda: [SampledToken(each, None) for each in chosen.tolist()])


def finished_conversations(loaded: Loaded, numbers: Sequence[int]) -> Iterator[list[Conversation]]:
    """Have the model write these conversations, AT_ONCE at a time; after each step, yield those that ended in it."""
    at_once = AT_ONCE[loaded.device.type]
    engine = load_engine("06")(loaded, max_running=at_once, token_budget=8 * at_once)
    if loaded.device.type == "cpu":
        engine.draw = draw_candidates
    waiting, running = iter(numbers), {}

    def goes_on(conversation: Conversation) -> bool:
        """Queue the next turn, if the conversation has one and there is room for it."""
        if len(conversation.messages) == conversation.turns:
            return False
        prompt, params = conversation.prompt(), conversation.params()
        if len(prompt) + params.max_tokens > engine.max_model_len:
            return False
        running[engine.add(prompt, params).request_id] = conversation
        return True

    while True:
        for number in islice(waiting, at_once - len(running)):
            if not goes_on(Conversation(loaded.tokenizer, number)):
                raise InvalidInput(f"a context of {engine.max_model_len} tokens is too short for a question")
        if not running:
            return
        ended = []
        for request in engine.step():
            if request.finished:
                conversation = running.pop(request.request_id)
                conversation.append(request.text)
                if not goes_on(conversation):
                    ended.append(conversation)
        yield ended


def shard_file(folder: Path, number: int) -> Path:
    return folder / f"texts-{number:04}.safetensors"


def write_conversations(loaded: Loaded, folder: Path, shards: Sequence[int], status: StatusLine) -> None:
    """Write the files of these numbers that are missing in the folder, each when all its conversations have ended."""
    missing = [number for number in shards if not shard_file(folder, number).exists()]
    ended: dict[int, dict[int, list[int]]] = {number: {} for number in missing}  # shard: conversation: tokens
    numbers = [number for shard in missing for number in range(shard * SHARD, (shard + 1) * SHARD)]
    tokens, start = 0, time.monotonic()
    for conversations in finished_conversations(loaded, numbers):
        for conversation in conversations:
            shard = ended[conversation.number // SHARD]
            shard[conversation.number] = conversation.tokens(conversation.text())
            tokens += len(shard[conversation.number])
            if len(shard) == SHARD:
                write_shard(loaded, shard_file(folder, conversation.number // SHARD), shard)
                del ended[conversation.number // SHARD]
        done = 1 - sum(SHARD - len(shard) for shard in ended.values()) / (len(shards) * SHARD)
        seconds = time.monotonic() - start
        status.say(seconds, f"writing {bar(done, 1)} {100 * done:.0f} %, {tokens / seconds:.0f} tokens/s")


@torch.inference_mode()
def write_shard(loaded: Loaded, file: Path, conversations: dict[int, list[int]]) -> None:
    """Write conversations in the order of their numbers, with what the model finds likeliest after each token."""
    texts = [torch.tensor(conversations[number]) for number in sorted(conversations)]
    hidden = hidden_states(loaded.model, texts, loaded.device)
    found = [loaded.model.logits(rows).float().softmax(-1).topk(LIKELIEST) for rows in hidden.split(512)]
    tensors = {
        "token_ids": torch.cat(texts),
        "lengths": torch.tensor([len(text) for text in texts]),
        "likeliest": torch.cat([part.indices for part in found]).cpu(),  # [N, LIKELIEST]
        "probabilities": torch.cat([part.values for part in found]).cpu(),
    }
    temporary = file.with_suffix(".tmp")
    save_file(tensors, temporary)
    temporary.replace(file)  # in one piece: Ctrl-C while writing leaves no half file
