"""An engine on a thread of its own, and the streams that carry its output to asyncio code.

A step of the engine computes for milliseconds to seconds without a pause, so it cannot run on the event loop, which has
to serve all clients meanwhile. And an engine is not thread-safe, so no other thread may touch it. The two sides
therefore only exchange messages: commands go to the thread through one queue, pieces of text come back through one
queue per request.

    event loop                        engine thread
    submit(prompt) ── command ──────> engine.add
                   <───── piece ───── engine.step, for as long as there is work
    abort(stream)  ── command ──────> engine.abort, before the next step

vLLM's AsyncLLM and SGLang's TokenizerManager have this shape too, with a process in place of the thread, since
Python's interpreter lock lets only one of two busy threads run.
"""

import asyncio
import copy
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from common.engine import BaseEngine
from common.errors import InvalidInput, out_of_memory
from common.request import Request, prompt_tokens
from common.sampling import SamplingParams, TokenLogprobs
from common.serving.errors import EngineDead, QueueFull

Submission = tuple[str | list[int], SamplingParams]  # a prompt and its parameters


@dataclass(frozen=True)
class Piece:
    """The text that became final since the piece before, and its tokens. The last piece has a finish_reason."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]  # of these tokens, if requested
    finish_reason: str | None = None


class Stream:
    """One request as the event loop sees it: an asynchronous iterator of pieces."""

    def __init__(self, accepted: asyncio.Future[None], arrived: float):
        self.accepted = accepted  # one for all requests that were submitted together
        self.arrived = arrived  # on the clock of `Timings`
        self.request: Request | None = None  # belongs to the engine thread until the last piece arrives
        self._pieces: asyncio.Queue[Piece] = asyncio.Queue()
        self._text_sent = 0  # characters
        self._tokens_sent = 0

    def next_piece(self) -> Piece | None:
        """On the engine thread: return what can be sent now, None if no new text is final."""
        request, certain = self.request, self.request.stable_text_length
        if certain <= self._text_sent and not request.finished:
            return None
        text, sent = request.text[self._text_sent : certain], self._tokens_sent
        self._text_sent, self._tokens_sent = certain, len(request.token_ids)
        return Piece(text, request.token_ids[sent:], request.logprobs[sent:], request.finish_reason)

    def put(self, piece: Piece) -> None:
        """Queue a piece for the iterator. Call this on the event loop."""
        self._pieces.put_nowait(piece)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Yield pieces as they arrive, up to the one with a finish reason."""
        while True:
            piece = await self._pieces.get()
            yield piece
            if piece.finish_reason is not None:
                return

    async def finished(self) -> Request | None:
        """Wait for the last piece; return the finished request, or None if the engine failed."""
        async for piece in self:
            last = piece
        return self.request if last.finish_reason != "error" else None


class EngineThread:
    """Own an engine. Call all methods from the event loop of `start`; those named `_engine_...` run on the thread.

    max_queue: most open requests, running ones included; beyond that `submit` raises QueueFull.
    """

    def __init__(self, engine: BaseEngine, max_queue: int):
        self.engine, self.max_queue = engine, max_queue
        self.error: Exception | None = None  # if set, why new requests are refused
        self.failure: BaseException | None = None  # what ended the thread before `close` did
        self.on_failure: Callable[[], None] = lambda: None  # called on the event loop, after all streams have ended
        self.deadline = math.inf  # when `close` aborts open requests, on the event loop's clock
        self.stats = engine.stats()  # after the last step: the engine itself may be in the middle of one
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open: set[Stream] = set()  # touched on the event loop only
        self._by_id: dict[str, Stream] = {}  # touched on the engine thread only
        self.tokenizer = copy.deepcopy(engine.tokenizer)  # the engine's own belongs to its thread
        self._tokenizing = ThreadPoolExecutor(1, "tokenizer")  # one thread: the other cores are for the engine
        self._running = True
        self._thread = threading.Thread(target=self._engine_run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread. Call this on the event loop that is to receive the pieces."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def submit(self, prompt: str | list[int], params: SamplingParams) -> Stream:
        """Queue one request, as `submit_all` does."""
        [stream] = await self.submit_all([(prompt, params)])
        return stream

    async def submit_all(self, submissions: Sequence[Submission], arrived: float | None = None) -> list[Stream]:
        """Queue all requests or none. Raise InvalidInput if one can never run, QueueFull or EngineDead if not now.

        Reserve places in the queue for all of them first; the engine then adds all of them between the same two steps.
        Tokenize their prompts before that: a long text takes a tokenizer longer than a step takes the engine.
        arrived: when the server received them, on the clock of `Timings`; None: now.
        """
        if self.error is not None:
            raise EngineDead(str(self.error))
        if len(self._open) + len(submissions) > self.max_queue:
            counts = f"{len(self._open)} requests are open, {len(submissions)} more were sent"
            raise QueueFull(f"{counts}, and the server takes {self.max_queue}: try again later")
        accepted = self._loop.create_future()
        streams = [Stream(accepted, time.perf_counter() if arrived is None else arrived) for _ in submissions]
        self._open.update(streams)
        try:
            token_ids = {}
            for text in {prompt for prompt, _ in submissions if isinstance(prompt, str)}:
                token_ids[text] = await self.beside(prompt_tokens, text, self.tokenizer, self.engine.config)
            if self.error is not None:  # set while the tokenizer ran
                raise EngineDead(str(self.error))
        except BaseException:
            self._open.difference_update(streams)
            raise
        submissions = [
            (token_ids[prompt] if isinstance(prompt, str) else prompt, params) for prompt, params in submissions
        ]
        self._commands.put(partial(self._engine_add, streams, submissions))
        try:
            await accepted
        except asyncio.CancelledError:  # the client went away while its requests were on the way to the engine
            for stream in streams:
                self.abort(stream)
            raise
        return streams

    async def beside(self, function: Callable, *arguments):
        """Run a function on the tokenizer's thread, beside the engine and the event loop; return its result."""
        return await self._loop.run_in_executor(self._tokenizing, partial(function, *arguments))

    def abort(self, stream: Stream) -> None:
        """End a request before the engine's next step; ignore one that has ended."""
        self._commands.put(partial(self._engine_abort, stream))

    async def close(self, grace: float) -> None:
        """Refuse new requests, wait up to `grace` seconds for open ones, abort the rest, and end the thread.

        To stop sooner, set an earlier `deadline`, or call this again with less grace.
        """
        if self.error is None:
            self.error = EngineDead("the server is shutting down")
        self.deadline = min(self.deadline, self._loop.time() + grace)
        while self._open and self._loop.time() < self.deadline and self._thread.is_alive():
            await asyncio.sleep(0.02)
        for stream in self._open:
            self.abort(stream)
        self._commands.put(self._engine_stop)
        await asyncio.to_thread(self._thread.join)

    def _answer(self, streams: list[Stream], error: Exception | None) -> None:
        """Tell `submit_all` that the engine has taken its requests, or why it has refused them."""
        if error is not None:
            self._open.difference_update(streams)
        accepted = streams[0].accepted
        if accepted.done():  # cancelled: no client waits for it
            return
        if error is not None:
            accepted.set_exception(error)
        else:
            accepted.set_result(None)

    def _deliver(self, pieces: list[tuple[Stream, Piece]]) -> None:
        """Pass each piece to its stream; a stream with its last piece is no longer open."""
        for stream, piece in pieces:
            stream.put(piece)
            if piece.finish_reason is not None:
                self._open.discard(stream)

    def _fail_all(self, error: BaseException) -> None:
        """End every open stream with an error: the thread is dead, and no client may be left waiting for it."""
        self.failure, self.error = error, EngineDead(f"the engine failed: {out_of_memory(error) or repr(error)}")
        for stream in self._open:
            if not stream.accepted.done():
                stream.accepted.set_exception(self.error)
                stream.accepted.exception()  # Otherwise asyncio logs it while the prompt is still being tokenized.
        self._deliver([(stream, Piece("", [], [], "error")) for stream in self._open])
        self.on_failure()

    def _engine_run(self) -> None:
        """Run the thread: commands first, so that an abort takes effect before the next step, then one step."""
        try:
            while self._running:
                self._engine_take_commands()
                self._engine_publish(self.engine.step())
                self.stats = self.engine.stats()
        except BaseException as error:  # a library that calls sys.exit ends this thread too
            self._tell(self._fail_all, error)
            if out_of_memory(error) is None:  # running out of memory needs no traceback
                raise

    def _engine_take_commands(self) -> None:
        """Run all commands that have come; an idle engine first waits for one, up to its `idle_seconds`."""
        idle = not self.engine.has_unfinished  # nothing to compute: sleep until a command comes
        while True:
            try:
                command = self._commands.get(block=idle, timeout=self.engine.idle_seconds if idle else None)
            except Empty:
                return
            command()
            idle = False

    def _engine_add(self, streams: list[Stream], submissions: Sequence[Submission]) -> None:
        """Add all requests to the engine or none, and answer `submit_all`."""
        refusal = None
        try:
            for stream, submission in zip(streams, submissions, strict=True):
                stream.request = self.engine.add(*submission)
                stream.request.timings.arrival = stream.arrived
                self._by_id[stream.request.request_id] = stream
        except (InvalidInput, QueueFull) as error:
            refusal = error
            for stream in streams:
                self._engine_abort(stream)
        self._tell(self._answer, streams, refusal)

    def _engine_abort(self, stream: Stream) -> None:
        """Abort a request that has not ended, and send its last piece."""
        if stream.request is not None and not stream.request.finished:
            self.engine.abort(stream.request.request_id)
            self._engine_publish([stream.request])

    def _engine_publish(self, requests: list[Request]) -> None:
        """Send the new pieces of all requests in one message: waking the event loop costs more than the message."""
        pieces = []
        for request in requests:
            stream = self._by_id.pop(request.request_id) if request.finished else self._by_id[request.request_id]
            if piece := stream.next_piece():
                pieces.append((stream, piece))
        if pieces:
            self._tell(self._deliver, pieces)

    def _engine_stop(self) -> None:
        """Let the thread end after its next step."""
        self._running = False

    def _tell(self, function: Callable, *arguments) -> None:
        """Have the event loop call a function."""
        self._loop.call_soon_threadsafe(function, *arguments)
