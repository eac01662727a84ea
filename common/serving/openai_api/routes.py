"""`POST /v1/completions`, `POST /v1/chat/completions`, `GET /v1/models`."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from common.request import check_characters, prompt_tokens, refuse_what_is_too_long
from common.sampling import TokenLogprobs
from common.serving.errors import EngineDead
from common.serving.scoring import prompt_logprobs
from common.threads import beside_the_event_loop

from .answers import Answers, ChatAnswers, CompletionAnswers, usage
from .bodies import Body, ChatBody, CompletionBody, Message
from .errors import BadRequest, Json, OpenAIRoute, error_object

SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must pass each event on at once
LOST = ("error", "abort")  # how a choice ends that nobody has completed: the engine failed, or the server stops
NOT_COMPLETED = "the request could not be completed"


@dataclass
class Echo:
    """A prompt that stands in front of its answers."""

    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprobs | None] | None


@dataclass
class Call:
    """One HTTP request on its way: a stream for each choice, prompt by prompt."""

    body: Body
    answers: Answers
    streams: list
    echoes: list[Echo]  # one for each prompt, or none at all

    def echo(self, index: int) -> Echo | None:
        return self.echoes[index // self.body.choices] if self.echoes else None

    def usage(self, output_tokens: int) -> dict[str, Any]:
        return usage([stream.request for stream in self.streams[:: self.body.choices]], output_tokens)


class Service:
    """What the routes share: the engine's thread, and the tokenizer beside it."""

    def __init__(self, engine_thread, name: str):
        self.thread, self.engine, self.name = engine_thread, engine_thread.engine, name
        self.tokenizer = engine_thread.tokenizer
        self.scoring = asyncio.Lock()  # one text at a time

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.name:
            message = f"the model {name!r} does not exist: this server has {self.name!r}"
            raise BadRequest(message, "model", status=404, code="model_not_found")

    def check(self, body: Body, prompts: int) -> None:
        """All that can be said before any work is done."""
        self.check_model(body.model)
        body.check()
        if prompts * body.choices > self.thread.max_queue:
            raise BadRequest(
                f"one call for {prompts * body.choices} answers, and the queue takes {self.thread.max_queue}"
            )

    def prompt_tokens(self, prompt: str | list[int]) -> list[int]:
        return prompt_tokens(prompt, self.tokenizer, self.engine.config)

    def chat_tokens(self, messages: Sequence[Message], generate: bool = True, options: dict | None = None) -> list[int]:
        """Messages in the checkpoint's own chat template."""
        if self.tokenizer is None or self.tokenizer.chat_template is None:
            raise BadRequest(f"the model {self.name!r} has no chat template: use /v1/completions", "messages")
        template, options = self.tokenizer.apply_chat_template, options or {}
        if taken := options.keys() & {*inspect.signature(template).parameters, "messages"}:
            raise BadRequest(f"chat_template_kwargs may not set {min(taken)!r}", "chat_template_kwargs")
        plain = [message.plain() for message in messages]
        refuse_what_is_too_long(sum(len(one["content"]) for one in plain), self.tokenizer, self.engine.config)
        try:
            check_characters(json.dumps([plain, options], ensure_ascii=False))
            return template(plain, add_generation_prompt=generate, return_dict=True, **options)["input_ids"]
        except Exception as error:  # a template is a program that comes with the checkpoint, and raises what it likes
            raise BadRequest(f"the chat template refuses these messages: {error}", "messages") from error

    async def echo(self, prompt: str | list[int], logprobs: int | None) -> Echo:
        token_ids = await self.thread.beside(self.prompt_tokens, prompt)
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(token_ids) if self.tokenizer else ""
        if logprobs is None:
            return Echo(token_ids, text, None)
        async with self.scoring:
            scores = await beside_the_event_loop(prompt_logprobs, self.engine.model, token_ids, logprobs)
        return Echo(token_ids, text, scores)

    async def submit(
        self, body: Body, prompts: Sequence[str | list[int]], answers: Answers, echoes: list[Echo]
    ) -> Call:
        """Queues a request for each choice of each prompt: all of them, or none."""
        orders = []
        for prompt in prompts:
            for i in range(body.choices):
                params = body.params
                if params.seed is not None:  # choices of one prompt must differ
                    params = replace(params, seed=(params.seed + i) % 2**63)
                orders.append((prompt, params))
        streams = await self.thread.submit_all(orders)
        return Call(body, answers, streams, echoes)

    async def respond(self, http: Request, call: Call) -> Response:
        """The answer, whole or streamed; a client that goes away in between ends its requests."""
        watch = asyncio.create_task(abort_when_gone(http, self.thread, call.streams))
        if call.body.stream:
            content = self.events(call, watch)
            return StreamingResponse(content, media_type="text/event-stream", headers=SSE_HEADERS)
        for stream in call.streams:
            if await stream.finished() is None or stream.request.finish_reason in LOST:
                raise EngineDead(str(self.thread.error or NOT_COMPLETED))
        watch.cancel()
        tokens = sum(len(stream.request.token_ids) for stream in call.streams)
        return Json(call.answers.answer([whole_choice(call, i) for i in range(len(call.streams))], call.usage(tokens)))

    async def events(self, call: Call, watch: asyncio.Task) -> AsyncIterator[str]:
        """Server-sent events: chunks as they come, at the end the usage if it is wanted, and `[DONE]`."""
        body, answers = call.body, call.answers
        running = {"usage": None} if body.include_usage else {}
        begun: set[int] = set()
        tokens = 0  # sent; the engine may be ahead
        async for index, piece in merged(call.streams):
            if piece.finish_reason in LOST:
                yield event(error_object(str(self.thread.error or NOT_COMPLETED), 500))
                break
            tokens += len(piece.token_ids)
            if body.continuous_usage:
                running = {"usage": call.usage(tokens)}
            echo = None if index in begun else call.echo(index)
            begun.add(index)
            yield event(answers.chunk_of([chunk_choice(call, index, piece, echo)], **running))
        else:
            if body.include_usage:
                yield event(answers.chunk_of([], usage=call.usage(tokens)))
        yield "data: [DONE]\n\n"
        watch.cancel()


def whole_choice(call: Call, index: int) -> dict[str, Any]:
    request, echo = call.streams[index].request, call.echo(index)
    text, token_ids, entries = request.text, request.token_ids, request.logprobs
    if echo is not None:
        text, token_ids, entries = echo.text + text, echo.token_ids + token_ids, (echo.logprobs or []) + entries
    logprobs = call.answers.logprobs(index, token_ids, entries) if request.params.logprobs is not None else None
    return call.answers.choice(index, text, logprobs, request.finish_reason, request.stop_reason)


def chunk_choice(call: Call, index: int, piece, echo: Echo | None) -> dict[str, Any]:
    """echo: the prompt, which goes with the first chunk of its choice."""
    request = call.streams[index].request
    text, token_ids, entries = piece.text, piece.token_ids, piece.logprobs
    if echo is not None:
        text, token_ids, entries = echo.text + text, echo.token_ids + token_ids, (echo.logprobs or []) + entries
    logprobs = call.answers.logprobs(index, token_ids, entries) if request.params.logprobs is not None else None
    stop_reason = request.stop_reason if piece.finish_reason else None
    return call.answers.chunk_choice(index, text, logprobs, piece.finish_reason, stop_reason)


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=OpenAIRoute)

    @routes.post("/v1/completions")
    async def completions(http: Request, body: CompletionBody):
        service.check(body, len(body.prompts))
        params, answers, echoes = body.params, CompletionAnswers(service.name, service.tokenizer), []
        if body.echo:
            echoes = [await service.echo(prompt, params.logprobs) for prompt in body.prompts]
        if body.max_tokens == 0:
            return echo_alone(body, answers, echoes)
        return await service.respond(http, await service.submit(body, body.prompts, answers, echoes))

    @routes.post("/v1/chat/completions")
    async def chat_completions(http: Request, body: ChatBody):
        service.check(body, 1)
        prompt = await service.thread.beside(service.chat_tokens, body.messages, True, body.chat_template_kwargs)
        answers = ChatAnswers(service.name, service.tokenizer)
        return await service.respond(http, await service.submit(body, [prompt], answers, []))

    @routes.get("/v1/models")
    async def models():
        card = {
            "id": service.name,
            "object": "model",
            "created": 0,
            "owned_by": "local",
            "root": service.engine.name,
            "max_model_len": service.engine.config.context_length,
        }
        return Json({"object": "list", "data": [card]})

    return routes


def echo_alone(body: CompletionBody, answers: CompletionAnswers, echoes: list[Echo]) -> Response:
    """Nothing is generated: the prompts come back, with what the model thinks of them if that is wanted."""
    choices = []
    for index, echo in enumerate(echo for echo in echoes for _ in range(body.choices)):
        logprobs = answers.logprobs(index, echo.token_ids, echo.logprobs) if echo.logprobs is not None else None
        choices.append((index, echo.text, logprobs, "length", None))
    tokens = usage([echo.token_ids for echo in echoes], 0)
    if not body.stream:
        return Json(answers.answer([answers.choice(*choice) for choice in choices], tokens))
    running = {"usage": tokens if body.continuous_usage else None} if body.include_usage else {}
    events = [event(answers.chunk_of([answers.chunk_choice(*choice)], **running)) for choice in choices]
    events += [event(answers.chunk_of([], usage=tokens))] * body.include_usage + ["data: [DONE]\n\n"]
    return StreamingResponse(iter(events), media_type="text/event-stream", headers=SSE_HEADERS)


def event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"


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


async def abort_when_gone(http: Request, engine_thread, streams: Sequence) -> None:
    """The body has been read, so what comes next is the client's departure."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    for stream in streams:
        engine_thread.abort(stream)
