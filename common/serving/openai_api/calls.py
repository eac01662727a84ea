"""One HTTP call: the engine thread's streams for it, and the choices of its answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.sampling import TokenLogprobs

from .answers import Answers, usage
from .bodies import Body
from .slices import sliced_logprobs

FAILED = ("error", "abort")  # finish reasons of an incomplete choice: the engine failed, or the server stops


@dataclass
class Echo:
    """A prompt that its answers begin with."""

    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprobs | None] | None  # None: not requested


@dataclass
class Call:
    """The streams of one call. Choice `index` belongs to prompt `index // body.choices`."""

    body: Body
    answers: Answers
    scored: list  # a stream for each prompt to be scored
    streams: list  # a stream for each choice; none if the call is for the prompts alone
    echoes: list[Echo] = field(default_factory=list)  # one for each prompt, or none
    begun: set[int] = field(default_factory=set)  # choices whose first chunk has been sent

    @property
    def choices(self) -> int:
        return len(self.streams) or len(self.echoes) * self.body.choices

    def echo(self, index: int) -> Echo | None:
        return self.echoes[index // self.body.choices] if self.echoes else None

    def usage(self, output_tokens: int) -> dict[str, Any]:
        prompts = [stream.request for stream in self.streams[:: self.body.choices]]
        return usage(prompts or [echo.token_ids for echo in self.echoes], output_tokens)

    async def whole_choice(self, index: int) -> dict[str, Any]:
        if not self.streams:
            return self.answers.choice(*await self._prompt_alone(index))
        request = self.streams[index].request
        text, logprobs = await self._with_echo(
            index, request.text, request.token_ids, request.logprobs, self.echo(index)
        )
        return self.answers.choice(index, text, logprobs, request.finish_reason, request.stop_reason)

    async def chunk_choice(self, index: int, piece) -> dict[str, Any]:
        """Return a choice of a chunk; the first one of a choice begins with the echo."""
        if not self.streams:
            return self.answers.chunk_choice(*await self._prompt_alone(index))
        request, echo = self.streams[index].request, None if index in self.begun else self.echo(index)
        self.begun.add(index)
        text, logprobs = await self._with_echo(index, piece.text, piece.token_ids, piece.logprobs, echo)
        stop_reason = request.stop_reason if piece.finish_reason else None
        return self.answers.chunk_choice(index, text, logprobs, piece.finish_reason, stop_reason)

    async def pieces(self) -> AsyncIterator[tuple[int, Any]]:
        """Yield (choice, piece) for all choices, in order of arrival."""
        if not self.streams:
            for index in range(self.choices):
                yield index, NO_PIECE
        async for index, piece in merged(self.streams):
            yield index, piece

    async def _with_echo(
        self,
        index: int,
        text: str,
        token_ids: list[int],
        entries: list[TokenLogprobs | None],
        echo: Echo | None,
    ) -> tuple[str, dict[str, list] | None]:
        if echo is not None:
            text, token_ids, entries = echo.text + text, echo.token_ids + token_ids, (echo.logprobs or []) + entries
        requested = self.streams[index].request.params.logprobs is not None
        return text, await sliced_logprobs(self.answers, index, token_ids, entries) if requested else None

    async def _prompt_alone(self, index: int) -> tuple:
        """Return the arguments of `Answers.choice` for a prompt without output."""
        echo, logprobs = self.echo(index), None
        if echo.logprobs is not None:
            logprobs = await sliced_logprobs(self.answers, index, echo.token_ids, echo.logprobs)
        return index, echo.text, logprobs, "length", None


@dataclass(frozen=True)
class NoPiece:
    """Stands for the one piece of a choice that generates nothing."""

    token_ids: tuple[int, ...] = ()
    finish_reason: str = "length"


NO_PIECE = NoPiece()


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
