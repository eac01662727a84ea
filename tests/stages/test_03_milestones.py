"""Milestones of stage 03: an engine on a thread of its own, and its text on the way to clients while it computes."""

import asyncio
import json
import threading
import time
from types import SimpleNamespace
from unittest import mock

import httpx

from common.errors import InvalidInput
from common.learn.milestones import Failed, milestone
from common.learn.milestones.pictures import rows
from common.learn.milestones.stage_under_test import STORIES, endless, expect, expect_rows
from common.request import Request
from common.sampling import SamplingParams
from common.serving.errors import EngineDead, QueueFull

STORY = STORIES[0]
PATIENCE = 8  # seconds, for whatever a thread or a client waits for


def within_time(what: str, coroutine):
    """Run a coroutine to its end; fail if it takes too long, or if something that the event loop calls raises."""

    async def limited():
        task, raised = asyncio.ensure_future(coroutine), []

        def stop(_, context):
            raised.append(context.get("exception"))
            task.cancel()

        asyncio.get_running_loop().set_exception_handler(stop)
        try:
            return await asyncio.wait_for(task, PATIENCE)
        except (asyncio.TimeoutError, TimeoutError):
            raise Failed(f"{what} took longer than {PATIENCE} s: something was waited for that never came") from None
        except asyncio.CancelledError as error:
            raise next(filter(None, raised), error) from None

    return asyncio.run(limited())


def make_stream(stage, request=None):
    stream = stage.engine_thread.Stream(SimpleNamespace(done=lambda: False), time.perf_counter())
    stream.request = request
    return stream


def make_piece(stage, text: str, end: str | None = None):
    return stage.engine_thread.Piece(text, [1], [], end)


def make_thread(stage, max_queue: int = 4):
    return stage.engine_thread.EngineThread(stage.make_engine(), max_queue)


@milestone("Stream.next_piece")
def test_pieces_of_text_that_are_final(stage):
    """Each piece is the text that became final since the last piece, with its tokens; None if there is none.

    Hint: request.stable_text_length is how much of request.text is final; remember what was sent, and how many.
    Second hint: A request that has finished always has a last piece, with its finish_reason, even without new text.
    """
    tokenizer = stage.loaded.tokenizer
    output = tokenizer(" and the owl said: stop here, please")["input_ids"]
    request = Request("A", tokenizer(STORY)["input_ids"], SamplingParams(stop="stop it"), tokenizer, frozenset(), 50)
    stream, texts, counts = make_stream(stage, request), [], []
    for token in output:
        request.append(token)
        final = request.stable_text_length
        piece = stream.next_piece()
        texts.append(piece.text if piece else "")
        counts.append(len(piece.token_ids) if piece else 0)
        sent, picture = "".join(texts), rows({"piece": [repr(text) for text in texts], "tokens": counts})
        expect(sent == request.text[:final], f"final is {request.text[:final]!r}, sent was {sent!r}", picture)
        expect(piece is None or piece.text, "a piece without new text, of a request that goes on: return None")
    expect(stream.next_piece() is None, "without a new token there is no new piece: return None")
    request.finish("length")
    last = stream.next_piece()
    expect(last is not None and last.finish_reason == "length", "the last piece must have the finish_reason")
    expect("".join(texts) + last.text == request.text, "the texts of all pieces must be the text of the request")
    expect_rows("tokens of all pieces", [sum(counts) + len(last.token_ids)], [len(output)])


@milestone("Stream.__aiter__")
def test_a_stream_of_pieces(stage):
    """`async for piece in stream` gives the pieces in order, waits for each, and ends after the last one.

    Hint: An async generator: in a loop, await self._pieces.get() and yield what it returns.
    Second hint: The last piece is the one whose finish_reason is not None: yield it, then return.
    """

    async def read():
        stream = make_stream(stage)
        pieces = [make_piece(stage, "a"), make_piece(stage, "b"), make_piece(stage, "", "stop")]
        for number, piece in enumerate(pieces):
            asyncio.get_running_loop().call_later(0.02 * number, stream.put, piece)
        expect_rows("pieces", [repr(piece.text) async for piece in stream], ["'a'", "'b'", "''"])

    within_time("to read three pieces", read())


def pieces_in(stream) -> list:
    return [stream._pieces.get_nowait() for _ in range(stream._pieces.qsize())]


@milestone(
    "EngineThread._deliver, EngineThread._engine_take_commands, EngineThread._engine_add, "
    "EngineThread._engine_abort, EngineThread._engine_publish"
)
def test_what_the_engine_thread_does(stage):
    """Commands run between two steps; after a step each request's new piece is put into its own stream.

    Hint: _engine_add fills _by_id and answers through _tell; _engine_publish asks each stream for its next piece.
    Second hint: If the engine refuses one of the requests (InvalidInput), abort those before it, and answer with it.
    """
    thread, ran, answers = make_thread(stage), [], []
    thread._loop = SimpleNamespace(call_soon_threadsafe=lambda function, *arguments: function(*arguments))
    thread._answer = lambda streams, error: answers.append(error)
    streams = [make_stream(stage), make_stream(stage)]
    thread._open.update(streams)
    for name in "abc":
        thread._commands.put(lambda name=name: ran.append(name))
    prompts = [(STORY, endless(3)), ("Count from 1 to 10:", endless(40))]
    thread._commands.put(lambda: thread._engine_add(streams, prompts))
    thread._engine_take_commands()
    expect_rows("commands that ran", ran, list("abc"))
    expect(answers == [None], f"two good requests: `_answer` got {answers}, not [None]")
    expect(all(stream.request for stream in streams), "each stream must know its request")
    thread._engine_take_commands()  # returns at once: there is work, and no command
    while thread.engine.has_unfinished and not streams[0].request.finished:
        thread._engine_publish(thread.engine.step())
    texts, text = [piece.text for piece in pieces_in(streams[0])], streams[0].request.text
    expect("".join(texts) == text, f"the stream got {texts}, not {text!r}")
    expect(thread._open == {streams[1]}, "`_deliver` must take a stream that has ended out of `_open`")
    goes_on = streams[1].request
    expect([*thread._by_id] == [goes_on.request_id], "`_engine_publish` must take what has ended out of `_by_id`")
    thread._engine_publish([goes_on])  # a request without a new piece: nothing is sent
    thread._engine_abort(streams[1])
    ended = pieces_in(streams[1])
    expect(not thread.engine.has_unfinished, "`_engine_abort` must abort the request in the engine")
    expect(ended and ended[-1].finish_reason == "abort", "a stream that is aborted gets a last piece that says so")
    thread._engine_abort(streams[1])  # once more is harmless
    thread._engine_add([make_stream(stage), make_stream(stage)], [(STORY, endless(3)), ("", endless(3))])
    expect(isinstance(answers[-1], InvalidInput), f"one of two requests is empty: `_answer` got {answers[-1]!r}")
    expect(not thread.engine.has_unfinished, "if one of several requests is refused, none of them may stay")


async def refusal(answer) -> str:
    try:
        await answer
    except (QueueFull, InvalidInput, EngineDead) as error:
        return type(error).__name__
    return "accepted"


async def collect(stream) -> str:
    return "".join([piece.text async for piece in stream])


@milestone("EngineThread.submit, EngineThread.submit_all, EngineThread._engine_run")
def test_from_the_event_loop_and_back(stage):
    """What is submitted on the event loop runs on the thread, and comes back as the engine's own text.

    Hint: submit_all: refuse, reserve places in _open, tokenize beside, put one _engine_add, await accepted.
    Second hint: _engine_run, while self._running: take commands, publish what engine.step() returns, keep its stats.
    """
    wanted = [one.text for one in stage.make_engine().generate(STORIES[:3], endless(6))]

    async def talk():
        thread, given = make_thread(stage), []
        add = thread.engine.add
        thread.engine.add = lambda prompt, *rest: given.append(prompt) or add(prompt, *rest)
        thread.start()
        streams = await thread.submit_all([(text, endless(6)) for text in STORIES[:2]])
        streams.append(await thread.submit(STORIES[2], endless(6)))
        expect_rows("texts", [await collect(stream) for stream in streams], wanted)
        refused = [await refusal(thread.submit_all([(STORY, endless(6))] * 5))]
        refused.append(await refusal(thread.submit_all([("", endless(6))])))
        left, thread.error = len(thread._open), EngineDead("closing")
        refused.append(await refusal(thread.submit(STORY, endless(6))))
        thread._commands.put(thread._engine_stop)
        what = "five requests in a queue of four; an empty prompt; after an error"
        expect_rows(what, refused, ["QueueFull", "InvalidInput", "EngineDead"])
        expect(left == 0, f"all streams have ended or were refused, and {left} are still in `_open`")
        expect(str not in map(type, given), f"the engine got {given}: tokenize with `beside`, not on its thread")

    within_time("to answer three requests", talk())


@milestone("EngineThread.abort, EngineThread.close, EngineThread._fail_all")
def test_every_stream_ends(stage):
    """abort ends a request; close lets the others finish and ends the thread; a dead engine ends all streams.

    Hint: abort and close put commands into the queue, as the engine belongs to its thread; close joins that.
    Second hint: _fail_all sets failure and error, and delivers a last piece to every stream in _open.
    """

    async def end():
        thread = make_thread(stage)
        thread.start()
        stays, goes = await thread.submit_all([(STORY, endless(20)), (STORY, endless(100))])
        thread.abort(goes)
        aborted = (await goes.finished()).finish_reason
        expect(aborted == "abort", f"the aborted request ended with {aborted!r}")
        await thread.close(grace=5)
        ended = not thread._thread.is_alive() and isinstance(thread.error, EngineDead)
        expect(ended, "after close the thread must have ended, and `error` be set")
        other = (await stays.finished()).finish_reason
        expect(other == "length", f"close(grace=5) must let a short request finish; it ended with {other!r}")

    within_time("to abort one of two requests and close", end())

    async def fail():
        thread = make_thread(stage)
        thread.on_failure = mock.Mock()
        thread.engine.step = lambda: [][0]
        thread.start()
        [stream] = await thread.submit_all([(STORY, endless(20))])
        last = [piece async for piece in stream][-1]
        thread._thread.join(5)
        errors = isinstance(thread.failure, IndexError), isinstance(thread.error, EngineDead)
        shown = last.finish_reason, *errors, thread.on_failure.call_count
        told = ["last piece", "failure", "error", "on_failure"]
        expect_rows("an engine whose step fails", shown, ["error", True, True, 1], told=told)

    with mock.patch.object(threading, "excepthook"):  # no traceback of what is broken here
        within_time("to hear of an engine that fails", fail())


@milestone("events, abort_on_disconnect")
def test_server_sent_events(stage):
    """A piece is an event, `data: {json}` and an empty line; then `data: [DONE]`. A client that leaves aborts.

    Hint: The last event is completion_json(stream.request) | event. After [DONE], cancel the watch.
    Second hint: abort_on_disconnect receives messages until one has the type "http.disconnect", and aborts.
    """

    async def read():
        [request] = stage.make_engine().generate([STORY], endless(2))
        stream, watch = make_stream(stage, request), asyncio.create_task(asyncio.sleep(60))
        for piece in (make_piece(stage, "one"), make_piece(stage, " two", "length")):
            stream.put(piece)
        sent = [event async for event in stage.server.events(stream, watch)]
        await asyncio.wait([watch], timeout=1)
        messages, aborted = iter(["http.request", "http.request", "http.disconnect"]), []

        async def receive():
            return {"type": next(messages)}

        there = SimpleNamespace(abort=aborted.append)
        await stage.server.abort_on_disconnect(SimpleNamespace(receive=receive), there, stream)
        picture = "\n".join(map(repr, sent))
        shape = all(event.startswith("data: ") and event.endswith("\n\n") for event in sent)
        expect(shape, "an event is `data: ...` and an empty line", picture)
        expect(sent[-1] == "data: [DONE]\n\n" and len(sent) == 3, "two pieces are two events and [DONE]", picture)
        first, last = (json.loads(event[6:]) for event in sent[:2])
        fields = ["finish_reason", "id", "text", "token_ids"]
        expect(sorted(first) == fields, f"an event has the fields {fields}, not {sorted(first)}")
        complete = last["finish_reason"] == "length" and "timings" in last
        expect(complete, "the last event must say what the unstreamed answer says")
        expect(watch.cancelled(), "after [DONE] the watch must be cancelled")
        expect(aborted == [stream], "after http.disconnect, and not before, the stream must be aborted")

    within_time("to read two events", read())


@milestone("create_app")
def test_the_application(stage):
    """POST /generate answers as JSON or streams; errors are 400, 429 and 503 in a sentence; /health counts.

    Hint: Parse the body, submit, start the watch; then a StreamingResponse of events, or wait for stream.finished().
    Second hint: For each error of ANSWERED, app.add_exception_handler(error, error_response) writes that answer.
    """

    async def ask():
        thread = make_thread(stage, max_queue=1)
        app = stage.server.create_app(thread)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")
        async with app.router.lifespan_context(app), client as http:
            body = {"prompt": STORY, "max_tokens": 5, "ignore_eos": True}
            asked = body, body | {"stream": True}, {}
            plain, streamed, bad = [await http.post("/generate", json=one) for one in asked]
            count = watched.call_count
            expect(count == 2, f"two clients came, one of which streams: `abort_on_disconnect` watches {count}")
            unknown, health = await http.get("/no"), await http.get("/health")
            busy = asyncio.create_task(http.post("/generate", json=body | {"max_tokens": 300}))
            while not thread._open:
                await asyncio.sleep(0.01)
            full = await http.post("/generate", json=body)
            thread.error = EngineDead("broken")
            dead = await http.get("/health")
            thread.error = None
            busy.cancel()
        status = [one.status_code for one in (plain, bad, unknown, health, full, dead)]
        requests = ["/generate", "{}", "/no", "/health", "full queue", "after an error"]
        expect_rows("status", status, [200, 400, 404, 200, 429, 503], request=requests)
        sent = [json.loads(line[6:]) for line in streamed.text.split("\n") if line.startswith("data: {")]
        text, whole = "".join(event["text"] for event in sent), plain.json()["text"]
        expect(text == whole, f"streamed {text!r} is not the plain answer {whole!r}")
        expect(health.json().get("status") == "ok", f"/health says {health.text}")

    with mock.patch.object(stage.server, "abort_on_disconnect") as watched:
        within_time("to ask the application", ask())
