"""The answer to one call: the streams that it waits for, and its JSON, whole or in chunks.

A prompt of 4,096 tokens with 20 alternatives for each makes an answer of several megabytes. Writing it takes tenths of
a second of Python, in which no stream would move and the engine would wait for the interpreter. So log-probabilities
are written in slices, with a pause after each that leaves most of the time to other work.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from common.detokenizer import IncrementalDetokenizer
from common.sampling import TokenLogprobs
from common.serving.engine_thread import Piece
from common.serving.errors import dump

from .bodies import Body
from .structured import CallParser

SLICE = 16  # tokens
PAUSE = 0.002  # seconds, several times as long as a slice takes
FAILED = ("error", "abort")  # finish reasons of an incomplete choice: the engine failed, or the server stops
NOTHING = Piece("", [], [], "length")  # the one piece of a choice that generates nothing


class Answer:
    """The answer to one call. Choice `index` belongs to prompt `index // body.choices`.

    scored: a stream for each prompt to be scored. streams: one for each choice; none if the call is for the prompts
    alone. Subclasses write the shapes of the two APIs.
    """

    prefix: str  # of the answer's id
    whole: str  # the field `object` of a whole answer
    chunk: str  # the field `object` of a chunk

    watch: asyncio.Task  # aborts the requests when the client disconnects

    def __init__(self, service, body: Body, prompts: Sequence, scored: Sequence, streams: Sequence):
        self.service, self.body, self.prompts, self.scored, self.streams = service, body, prompts, scored, streams
        self.echoes: list[Piece] = []  # what the choices of each prompt begin with; empty without `echo`
        self.begun: set[int] = set()  # choices of which at least the first chunk is written
        self.places: dict[int, tuple[IncrementalDetokenizer | None, int]] = {}  # by choice; the int: characters so far
        self.head = {"id": f"{self.prefix}{new_id()}", "created": int(time.time()), "model": body.model or service.name}

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Yield (choice, piece) for all choices, in order of arrival."""
        for index in range(0 if self.streams else len(self.echoes) * self.body.choices):
            yield index, NOTHING
        async for index, piece in merged(self.streams):
            yield index, piece

    def whole_pieces(self) -> list[Piece]:
        """Return the whole output of each choice as one piece. Call this when all streams have finished."""
        requests = [stream.request for stream in self.streams]
        pieces = [Piece(one.text, one.token_ids, one.logprobs, one.finish_reason) for one in requests]
        return pieces or [NOTHING] * len(self.echoes) * self.body.choices

    async def choice(self, index: int, piece: Piece, whole: bool = False) -> str:
        """Return the JSON of a choice, or of a piece of it; "" for a piece without content. The first has the echo."""
        text, token_ids, entries, reason = piece.text, piece.token_ids, piece.logprobs, piece.finish_reason
        first = index not in self.begun
        if self.echoes and first:
            echo = self.echoes[index // self.body.choices]
            text, token_ids, entries = echo.text + text, echo.token_ids + token_ids, echo.logprobs + entries
        stop_reason = self.streams[index].request.stop_reason if self.streams and reason is not None else None
        content = self.content(index, text, whole, first, reason is not None)
        if not content:
            return ""
        self.begun.add(index)
        fields = {"index": index, **content, "finish_reason": self.reason(index, reason)}
        requested = self.body.most_logprobs is not None
        logprobs = await self.sliced_logprobs(index, token_ids, entries) if requested else "null"
        return _with(fields | {"stop_reason": stop_reason}, "logprobs", logprobs)

    def reason(self, index: int, reason: str | None) -> str | None:
        """Return the finish reason that the API has for a request's."""
        return reason

    def json(self, kind: str, choices: Sequence[str], **fields: Any) -> str:
        """Return the JSON of an answer or a chunk, `kind` being one of the two names."""
        return _with(self.head | {"object": kind, **fields}, "choices", f"[{','.join(choices)}]")

    def usage(self, output_tokens: int) -> dict[str, Any]:
        """Return the field `usage`. Each prompt counts once, however many choices it has."""
        requests = [stream.request for stream in self.streams[:: self.body.choices]]
        prompts = [one.prompt_token_ids for one in requests] or [echo.token_ids for echo in self.echoes]
        prompt_tokens = sum(map(len, prompts))
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in requests)},
        }

    async def sliced_logprobs(
        self, index: int, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]
    ) -> str:
        """Return the JSON of `logprobs` of any number of tokens, written in slices."""
        lists: dict[str, list[str]] = {}  # the JSON of each slice, without brackets
        for start in range(0, max(1, len(token_ids)), SLICE):
            if start:
                await asyncio.sleep(PAUSE)
            part = slice(start, start + SLICE)
            for name, values in self.logprobs(index, token_ids[part], entries[part]).items():
                lists.setdefault(name, []).append(dump(values)[1:-1])
        return "{" + ",".join(f'"{name}":[{",".join(slices)}]' for name, slices in lists.items()) + "}"

    def placed(self, index: int, token_ids: Sequence[int]) -> Iterator[tuple[int, bool, int]]:
        """Yield each of a choice's next tokens, whether no text comes before it, and the characters before it."""
        if index not in self.places:
            prompt = [] if self.echoes else self.streams[index].request.prompt_token_ids
            tokenizer = self.service.tokenizer
            self.places[index] = tokenizer and IncrementalDetokenizer(tokenizer, prompt), 0
        detokenizer, offset = self.places[index]
        echo = self.echoes[index // self.body.choices].text if self.echoes else ""
        for token_id in token_ids:
            first = detokenizer is not None and detokenizer.begins and not offset
            yield token_id, first, offset
            if detokenizer is not None:
                piece = detokenizer.append(token_id)
                name = self.service.token_text(token_id, first)
                # A special token is in the echo if the prompt spells it, and not if the tokenizer has added it.
                offset += len(piece) or len(name) * echo.startswith(name, offset)
        self.places[index] = detokenizer, offset


class CompletionAnswer(Answer):
    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def content(self, index: int, text: str, whole: bool, first: bool, last: bool) -> dict[str, Any]:
        return {"text": text}

    def logprobs(
        self, index: int, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]
    ) -> dict[str, list]:
        """Return four lists with an entry for each token; None for the first token of a prompt."""
        tokens, offsets, top = [], [], []
        for (token_id, first, offset), entry in zip(self.placed(index, token_ids), entries, strict=True):
            token = self.service.token_text(token_id, first)
            tokens.append(token)
            offsets.append(offset)
            top.append(entry and self.alternatives({token_id: token}, entry, first))
        return {
            "tokens": tokens,
            "token_logprobs": [entry and finite(entry.logprob) for entry in entries],
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def alternatives(self, names: dict[int, str], entry: TokenLogprobs, first: bool) -> dict[str, float]:
        """Return the likeliest tokens by their texts, or by their ids where the texts are alike.

        names: the text of the token itself, by its id.
        """
        [token_id] = names
        for other, _ in entry.top:
            text = self.service.token_text(other, first)
            names.setdefault(other, f"token_id:{other}" if text in names.values() else text)
        pairs = dict(entry.top) | {token_id: entry.logprob}
        return {names[other]: finite(logprob) for other, logprob in pairs.items()}


class ChatAnswer(Answer):
    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.parsers: dict[int, CallParser] = {}  # by choice, if it may call tools

    def content(self, index: int, text: str, whole: bool, first: bool, last: bool) -> dict[str, Any]:
        fields = {"content": text}
        if self.body.calls_tools:
            fields = self.tool_fields(index, text, last, numbered=not whole)
        if not (fields or whole or last or self.body.logprobs):
            return {}  # The piece is only syntax around a call.
        if whole:
            return {"message": {"role": "assistant", "content": None, "refusal": None} | fields}
        # Send the role with the first text: a chunk of its own would look like the first token.
        return {"delta": ({"role": "assistant"} if first else {}) | fields}

    def tool_fields(self, index: int, text: str, last: bool, numbered: bool) -> dict[str, Any]:
        """Return new text and new calls. In a stream calls are numbered, and their arguments come piece by piece."""
        if index not in self.parsers:
            self.parsers[index] = self.body.call_parser()
        content, parts = self.parsers[index].feed(text, last)
        calls = [
            ({"index": number} if numbered else {})
            | (call(name, arguments) if name else {"function": {"arguments": arguments}})
            for number, name, arguments in parts
        ]
        return ({"content": content} if content else {}) | ({"tool_calls": calls} if calls else {})

    def reason(self, index: int, reason: str | None) -> str | None:
        parser = self.parsers.get(index)
        complete = parser is not None and parser.count and parser.name is None
        return "tool_calls" if reason == "stop" and complete else reason

    def logprobs(
        self, index: int, token_ids: Sequence[int], entries: Sequence[TokenLogprobs]
    ) -> dict[str, list[dict[str, Any]]]:
        return {
            "content": [
                self._entry(token_id, first, entry.logprob)
                | {"top_logprobs": [self._entry(other, first, logprob) for other, logprob in entry.top]}
                for (token_id, first, _), entry in zip(self.placed(index, token_ids), entries, strict=True)
            ]
        }

    def _entry(self, token_id: int, first: bool, logprob: float) -> dict[str, Any]:
        token, content = self.service.token_text(token_id, first), self.service.token_bytes(token_id, first)
        return {"token": token, "logprob": finite(logprob), "bytes": content}


def new_id() -> str:
    """Return an id, which is no secret: a random number of the system would cost a wait for the interpreter lock."""
    return f"{random.getrandbits(96):024x}"


def call(name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool, as it appears in a message."""
    return {
        "id": f"call_{new_id()}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def finite(logprob: float) -> float:
    """Return the log-probability, or vLLM's stand-in for minus infinity, which JSON does not have."""
    return max(logprob, -9999.0)


def _with(fields: dict[str, Any], name: str, written: str) -> str:
    """Return the JSON of an object with these fields and one more, whose value is written already."""
    return f'{dump(fields)[:-1]},"{name}":{written}}}'


async def merged(streams: Sequence) -> AsyncIterator[tuple[int, Any]]:
    """Yield (number of the stream, piece) for all streams, in order of arrival."""
    if len(streams) == 1:
        async for piece in streams[0]:
            yield 0, piece
        return
    queue: asyncio.Queue = asyncio.Queue()

    async def pump(index: int) -> None:
        async for piece in streams[index]:
            queue.put_nowait((index, piece))

    pumps = [asyncio.create_task(pump(index)) for index in range(len(streams))]
    try:
        unfinished = len(streams)
        while unfinished:
            index, piece = await queue.get()
            unfinished -= piece.finish_reason is not None
            yield index, piece
    finally:
        for task in pumps:
            task.cancel()
