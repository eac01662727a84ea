"""The JSON of answers, whole or in chunks."""

import random
import time
from collections.abc import Sequence
from typing import Any

from common.request import Request
from common.sampling import TokenLogprobs


class Answers:
    """The answer to one call, with one or several choices. Subclasses write the shapes of the two APIs."""

    prefix: str  # of the answer's id
    whole: str  # the field `object` of a whole answer
    chunk: str  # the field `object` of a chunk

    def __init__(self, model: str, tokenizer, texts: dict[int, str]):
        self.tokenizer = tokenizer
        self.texts = texts  # token id -> text; all answers share it: one alone may need 20 texts for each token
        number = random.getrandbits(96)  # no secret: from the system it would be a wait for the interpreter lock
        self.head = {"id": f"{self.prefix}-{number:024x}", "created": int(time.time()), "model": model}

    def answer(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return self.head | {"object": self.whole, "choices": choices, "usage": usage}

    def chunk_of(self, choices: list[dict[str, Any]], **usage) -> dict[str, Any]:
        return self.head | {"object": self.chunk, "choices": choices, **usage}

    def token(self, token_id: int) -> str:
        if self.tokenizer is None:
            return f"token_id:{token_id}"
        if token_id not in self.texts:
            self.texts[token_id] = self.tokenizer.decode([token_id])
        return self.texts[token_id]


class CompletionAnswers(Answers):
    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, tokenizer, texts: dict[int, str]):
        super().__init__(model, tokenizer, texts)
        self.offsets: dict[int, int] = {}  # choice -> characters of the tokens listed so far

    def choice(self, index: int, text: str, logprobs, finish_reason: str | None, stop_reason) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        }

    chunk_choice = choice

    def logprobs(
        self, index: int, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]
    ) -> dict[str, list]:
        """Return four lists with an entry for each token; None for the first token of a prompt."""
        tokens = [self.token(token_id) for token_id in token_ids]
        offset, offsets = self.offsets.get(index, 0), []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        self.offsets[index] = offset
        top: list[dict[str, float] | None] = []
        for token, entry in zip(tokens, entries, strict=True):
            likeliest: dict[str, float] = {}
            for token_id, logprob in entry.top if entry else ():
                # Two tokens may have the same text: keep the likelier one.
                likeliest.setdefault(self.token(token_id), finite(logprob))
            top.append(likeliest | {token: finite(entry.logprob)} if entry else None)
        return {
            "tokens": tokens,
            "token_logprobs": [entry and finite(entry.logprob) for entry in entries],
            "top_logprobs": top,
            "text_offset": offsets,
        }


class ChatAnswers(Answers):
    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, tokenizer, texts: dict[int, str]):
        super().__init__(model, tokenizer, texts)
        self.begun: set[int] = set()  # choices whose role has been sent

    def choice(self, index: int, text: str, logprobs, finish_reason: str | None, stop_reason) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        }

    def chunk_choice(self, index: int, text: str, logprobs, finish_reason: str | None, stop_reason) -> dict[str, Any]:
        # Send the role with the first text: a chunk of its own would look like the first token.
        role = {} if index in self.begun else {"role": "assistant"}
        self.begun.add(index)
        return {
            "index": index,
            "delta": role | {"content": text},
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        }

    def logprobs(
        self, index: int, token_ids: Sequence[int], entries: Sequence[TokenLogprobs]
    ) -> dict[str, list[dict[str, Any]]]:
        return {
            "content": [
                self._entry(token_id, entry.logprob) | {"top_logprobs": [self._entry(*pair) for pair in entry.top]}
                for token_id, entry in zip(token_ids, entries, strict=True)
            ]
        }

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        token = self.token(token_id)
        return {"token": token, "logprob": finite(logprob), "bytes": list(token.encode())}


def finite(logprob: float) -> float:
    """Return the log-probability, or vLLM's stand-in for minus infinity, which JSON does not have."""
    return max(logprob, -9999.0)


def usage(prompts: Sequence[Request | Sequence[int]], output_tokens: int) -> dict[str, Any]:
    """Return the field `usage`. prompts: for each prompt, one of its requests, or its token ids if it has none."""
    ids = [one.prompt_token_ids if isinstance(one, Request) else one for one in prompts]
    cached = sum(one.cached_tokens for one in prompts if isinstance(one, Request))
    prompt_tokens = sum(map(len, ids))
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
