"""The API server in a process of its own, in front of the engine's (`--api-process`).

Python's interpreter lock lets one thread of a process run at a time. Beside an engine on a thread of the server, each
chunk that is written takes that time from the engine's next step. Two processes have two locks:

    API's process                                        engine's process
    HTTP, templates, tokenizer
    EngineThread, RemoteEngine ──── order, abort ────>   Steps: add, abort, step
                               <─────── report ───────   after each step
    detokenizer, stop strings, metrics, JSON, events

The engine's process knows tokens alone. The requests, with their texts, are here in front: RemoteEngine obeys the
engine contract, so the server is the same as with one process. Either process ends when the other one does.

vLLM has the same two processes (AsyncLLM and EngineCore, with ZeroMQ and msgpack between them), and may run several of
the first. SGLang has a third one for the detokenizer.
"""

import argparse
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, NamedTuple

from common.engine import BaseEngine
from common.errors import InvalidInput, out_of_memory
from common.loader import Loaded
from common.process import freeze_loaded_objects
from common.request import Request
from common.sampling import SamplingParams, TokenLogprobs
from common.terminal import run_to_end
from common.trace import StepRecord

from .prompt_logprobs import PromptLogprobs

COMPILING_SECONDS = 0.005  # An idle engine looks this often whether an answer's grammar is compiled.
LEAVING_SECONDS = 15.0  # for the API's process to end after the engine has failed

log = logging.getLogger("api_process")


class EngineCoreRequest(NamedTuple):
    """A request as the engine runs it. params: with the seed, and without stop strings."""

    prompt: list[int]
    params: SamplingParams
    request_id: str


class EngineCoreOutput(NamedTuple):
    """What a request has gained."""

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]  # of these tokens, or of a scored prompt's tokens; empty unless requested
    cached_tokens: int
    finish_reason: str | None


class EngineCoreOutputs(NamedTuple):
    """What a step has done. records: of the steps in which a request ran for the first time, for the metrics."""

    outputs: list[EngineCoreOutput]
    records: list[StepRecord]
    stats: dict[str, float]
    unavailable: str


class Hello(NamedTuple):
    """What the API's process has to know of the engine. loaded: without the model."""

    loaded: Loaded
    max_model_len: int
    scores_prompts: bool  # whether `accept` takes prompts to score (common/engine.py)
    why_no_scoring: str
    stats: dict[str, float]
    adapters: dict[str, Any]  # without their weights


class EngineFailed(SystemExit):
    """The engine has failed, or its process has ended. A thread that this ends prints no second traceback."""

    def __repr__(self) -> str:
        return str(self)


def send(connection: Connection, message: Any) -> None:
    """Send a message; if the other process has ended, the thread that reads from it notices."""
    with suppress(ConnectionError):
        connection.send(message)


class RemoteEngine(BaseEngine):
    """The engine of another process. The requests are here, and gain their tokens from its reports."""

    scores_prompts = True  # The engine's process scores them in either case.

    def __init__(self, connection: Connection):
        """Wait for the engine's Hello. Raise EOFError if its process ends before that."""
        hello: Hello = connection.recv()
        super().__init__(hello.loaded)
        self._hello, self._connection, self._stats = hello, connection, hello.stats
        self.adapters = hello.adapters
        self._inbox: deque[EngineCoreOutputs | EngineFailed] = deque()
        self._mail: list[EngineCoreRequest | str] = []  # A string is an id to drop. `step` sends all in one message.

    @property
    def max_model_len(self) -> int:
        return self._hello.max_model_len

    @property
    def has_unfinished(self) -> bool:
        """Return False: nothing is computed here. A step is due only after a command, such as a report."""
        return False

    def accept(self, request: Request) -> None:
        """Send the request to the engine. Raise InvalidInput if it can never run there."""
        tokens = len(request.prompt_token_ids) + request.max_tokens
        if tokens > self.max_model_len and (request.max_tokens or self._hello.scores_prompts):
            raise InvalidInput(
                f"prompt and max_tokens are {tokens} tokens, and the cache has room for {self.max_model_len}: ask for "
                "fewer tokens, or start the engine with a larger --kv-memory"
            )
        if not request.max_tokens and self._hello.why_no_scoring:
            raise InvalidInput(self._hello.why_no_scoring)
        params = replace(request.params, seed=request.seed, stop=())
        self._mail.append(EngineCoreRequest(request.prompt_token_ids, params, request.request_id))

    def release(self, request: Request) -> None:
        """Have the engine drop a request that it may still run: one with a stop string, or without a client."""
        self._mail.append(request.request_id)

    def step(self) -> list[Request]:
        """React to the reports that have come, and send the engine its mail. Raise EngineFailed if it has failed."""
        changed: dict[str, Request] = {}
        while self._inbox:
            report = self._inbox.popleft()
            if isinstance(report, EngineFailed):
                raise report
            for record in report.records:
                self.trace.add(record)
            for output in report.outputs:
                if request := self.requests.get(output.request_id):
                    self._take(request, output)
                    changed[output.request_id] = request
            self._stats, self.unavailable = report.stats, report.unavailable
        if self._mail:
            send(self._connection, self._mail)
            self._mail = []
        return list(changed.values())

    def stats(self) -> dict[str, float]:
        """Return those of the last report."""
        return self._stats

    def listen(self, engine_thread) -> None:
        """Begin to read reports, on a thread of its own. Each is a command for the thread that calls `step`."""

        def read() -> None:
            put = engine_thread._commands.put
            with suppress(EOFError, ConnectionError):
                while True:
                    put(partial(self._inbox.append, self._connection.recv()))
            put(partial(self._inbox.append, EngineFailed("its process has ended")))

        threading.Thread(target=read, name="reports", daemon=True).start()

    def _take(self, request: Request, output: EngineCoreOutput) -> None:
        """Append what a request has gained, up to a stop string."""
        request.cached_tokens = output.cached_tokens
        if not request.max_tokens:
            request.logprobs = output.logprobs
        for token_id, logprobs in zip_longest(output.token_ids, output.logprobs if request.max_tokens else ()):
            if not request.finished:
                request.append(token_id, logprobs)
        if output.finish_reason is not None and not request.finished:
            request.finish(output.finish_reason)
        self.retire_finished([request])


class Steps:
    """The engine's side: takes orders between two steps, and reports after each.

    interval: tokens that a request gains between two reports; its first and its last token are reported at once. A stop
    string is found up to that many tokens later.
    """

    def __init__(self, engine: BaseEngine, connection: Connection, interval: int = 1):
        self.engine, self.connection, self.interval = PromptLogprobs(engine), connection, interval
        loaded = replace(engine.loaded, model=None)
        why_not = self.engine.why_no_scoring
        adapters = {name: one._replace(weights={}) for name, one in engine.adapters.items()}
        hello = Hello(loaded, engine.max_model_len, engine.scores_prompts, why_not, engine.stats(), adapters)
        send(connection, hello)
        engine.tokenizer = None  # Without a tokenizer the engine makes no texts: the API's process does.
        self.reported: dict[str, int] = {}  # output tokens by request id
        self.queued: set[str] = set()  # requests without a step yet
        # Orders whose grammar a thread compiles beside the steps, as the API's process has already done.
        self.compiling: dict[str, tuple[Future, EngineCoreRequest]] = {}
        self.compiler = ThreadPoolExecutor(1, "forms")

    def run(self) -> None:
        """Run until the API's process has ended. Report what the engine raises, and raise it."""
        while (mail := self._receive()) is not None:
            try:
                report = self._step(mail)
            except BaseException as error:
                send(self.connection, EngineFailed(out_of_memory(error) or repr(error)))
                raise
            if report is not None:
                send(self.connection, report)

    def _receive(self) -> list[EngineCoreRequest | str] | None:
        """Return what has come, None if no more can come; an idle engine waits for it, up to its `idle_seconds`."""
        wait = COMPILING_SECONDS if self.compiling else self.engine.idle_seconds
        wait, mail = 0 if self.engine.has_unfinished else wait, []
        try:
            while self.connection.poll(0 if mail else wait):
                mail += self.connection.recv()
        except (EOFError, ConnectionError):
            return mail or None
        return mail

    def _step(self, mail: Sequence[EngineCoreRequest | str]) -> EngineCoreOutputs | None:
        """Return the report; None if nothing is new and another step follows."""
        outputs = []
        for one in mail:
            if isinstance(one, str):
                self._abort(one)
            elif form := one.params.structure:
                self.compiling[one.request_id] = self.compiler.submit(replace(form, model=self.engine.name).check), one
            else:
                outputs += self._add(one)
        for request_id, (form, order) in list(self.compiling.items()):
            if form.done():
                del self.compiling[request_id]
                outputs += self._add(order)
        before = self.engine.trace.steps
        outputs += [self._output(request) for request in self.engine.step() if self._due(request)]
        records, unavailable = self._first_steps(before), self.engine.unavailable
        if self.engine.has_unfinished and not (mail or outputs or records or unavailable):
            return None
        return EngineCoreOutputs(outputs, records, self.engine.stats(), unavailable)

    def _add(self, order: EngineCoreRequest) -> list[EngineCoreOutput]:
        """Give an order to the engine. If it refuses what RemoteEngine has accepted, return the request's end."""
        try:
            self.engine.add(*order)
        except InvalidInput as error:
            log.error("request %s ends with an error: %s", order.request_id, error)
            return [EngineCoreOutput(order.request_id, [], [], 0, "error")]
        self.queued.add(order.request_id)
        return []

    def _abort(self, request_id: str) -> None:
        self.engine.abort(request_id)
        for known in (self.compiling, self.reported):
            known.pop(request_id, None)
        self.queued.discard(request_id)

    def _due(self, request: Request) -> bool:
        reported = self.reported.get(request.request_id, -self.interval)
        return request.finished or len(request.token_ids) - reported >= self.interval

    def _output(self, request: Request) -> EngineCoreOutput:
        first = self.reported.get(request.request_id, 0)
        self.reported[request.request_id] = len(request.token_ids)
        if request.finished:
            del self.reported[request.request_id]
        gained = request.token_ids[first:], request.logprobs[first:]
        return EngineCoreOutput(request.request_id, *gained, request.cached_tokens, request.finish_reason)

    def _first_steps(self, before: int) -> list[StepRecord]:
        """Return the records since step `before` in which a request ran for the first time."""
        found = []
        for record in self.engine.trace.since(before) if self.queued else ():
            if ran := self.queued.intersection(work.request_id for work in record.works):
                self.queued -= ran
                found.append(record)
        return found


def serve_apart(engine: BaseEngine, args: argparse.Namespace, server_module: Callable[[], ModuleType]) -> None:
    """Run the engine here, and its server in another process, until SIGTERM, Ctrl-C or the end of either.

    server_module: imports the stage's module with `build_server`, in the other process. Signals go on to the server,
    which then ends as it would alone.
    """
    context, signals = multiprocessing.get_context("spawn"), []
    here, there = context.Pipe()
    process = context.Process(target=run_to_end, args=[partial(run_api, there, args, server_module)])

    def pass_on(number: int, _: Any) -> None:
        signals.append(number)
        with suppress(ProcessLookupError):  # The first goes as SIGTERM: it also ends a process that is still starting.
            os.kill(process.pid, number if signals[1:] else signal.SIGTERM)

    # The process starts with SIGINT ignored: a terminal sends it there too, until the process has its own session.
    handlers = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    process.start()
    handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    there.close()  # While this copy is open, `here` does not notice the process's end.
    try:
        Steps(engine, here, args.stream_interval).run()
    finally:
        here.close()
        process.join(LEAVING_SECONDS)
        process.kill()
        process.join()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    if process.exitcode and not signals:  # A process with a positive code has said why.
        ended = f"error: the API's process was ended by signal {-process.exitcode}, and the server has stopped"
        sys.exit(process.exitcode if process.exitcode > 0 else ended)


def run_api(connection: Connection, args: argparse.Namespace, server_module: Callable[[], ModuleType]) -> None:
    """Run the API's process: the stage's own server in front of a RemoteEngine."""
    if hasattr(os, "setsid"):
        os.setsid()  # Then Ctrl-C arrives once: the engine's process passes it on.
    try:
        engine = RemoteEngine(connection)
    except EOFError:  # the engine's process has ended already
        return
    server = server_module().build_server(engine, args)
    engine.listen(server.engine_thread)
    freeze_loaded_objects()
    server.serve_until_stopped()
