"""One HTTP request on its way: the streams that the engine's thread has opened for it, and the choices they become."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.sampling import TokenLogprobs

from .answers import Answers, usage
from .bodies import Body
from .slices import sliced_logprobs

LOST = ("error", "abort")  # how a choice ends that is not completed: the engine failed, or the server stops


@dataclass
class Echo:
    """A prompt that stands in front of its answers."""

    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprobs | None] | None


@dataclass
class Call:
    """A stream for each choice, prompt by prompt, and before them one for each prompt that is scored."""

    body: Body
    answers: Answers
    scored: list
    streams: list  # none if the prompts alone are wanted
    echoes: list[Echo] = field(default_factory=list)  # one for each prompt, or none at all
    begun: set[int] = field(default_factory=set)  # choices of which a chunk has been sent

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
        """The prompt goes with the first chunk of its choice."""
        if not self.streams:
            return self.answers.chunk_choice(*await self._prompt_alone(index))
        request, echo = self.streams[index].request, None if index in self.begun else self.echo(index)
        self.begun.add(index)
        text, logprobs = await self._with_echo(index, piece.text, piece.token_ids, piece.logprobs, echo)
        stop_reason = request.stop_reason if piece.finish_reason else None
        return self.answers.chunk_choice(index, text, logprobs, piece.finish_reason, stop_reason)

    async def pieces(self) -> AsyncIterator[tuple[int, Any]]:
        """The pieces of all choices as they come, each with the number of its choice."""
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
        wanted = self.streams[index].request.params.logprobs is not None
        return text, await sliced_logprobs(self.answers, index, token_ids, entries) if wanted else None

    async def _prompt_alone(self, index: int) -> tuple:
        """Nothing is generated: the prompt comes back, with what the model thinks of it if that is wanted."""
        echo, logprobs = self.echo(index), None
        if echo.logprobs is not None:
            logprobs = await sliced_logprobs(self.answers, index, echo.token_ids, echo.logprobs)
        return index, echo.text, logprobs, "length", None


@dataclass(frozen=True)
class NoPiece:
    """In place of a piece of a stream, where nothing is generated."""

    token_ids: tuple[int, ...] = ()
    finish_reason: str = "length"


NO_PIECE = NoPiece()


async def merged(streams: Sequence) -> AsyncIterator[tuple[int, Any]]:
    """The pieces of all streams as they come, each with the number of its stream."""
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
