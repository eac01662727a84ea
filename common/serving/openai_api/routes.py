"""`POST /v1/completions`, `POST /v1/chat/completions`, `GET /v1/models`."""

import asyncio
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from common.errors import shortened
from common.request import check_characters, check_prompt_length, prompt_tokens
from common.serving.errors import EngineDead
from common.serving.scoring import ScoringParams

from .answers import Answers, ChatAnswers, CompletionAnswers
from .bodies import Body, ChatBody, CompletionBody, Message
from .calls import FAILED, Call, Echo
from .errors import BadRequest, Json, OpenAIRoute, error_object
from .slices import dump, sliced_json

SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must pass each event on at once
NOT_COMPLETED = "the request could not be completed: send it again"


class Service:
    """What the routes share: the engine thread and the tokenizer."""

    def __init__(self, engine_thread, name: str, defaults: dict[str, float]):
        self.thread, self.engine, self.name = engine_thread, engine_thread.engine, name
        self.tokenizer, self.defaults = engine_thread.tokenizer, defaults
        self.token_texts: dict[int, str] = {}  # a cache of the texts of tokens, for log-probabilities

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.name:
            message = f"the model {shortened(name)} does not exist: use {self.name!r}"
            raise BadRequest(message, "model", status=404, code="model_not_found")

    def model_card(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": "model",
            "created": 0,
            "owned_by": "local",
            "root": self.engine.name,
            "max_model_len": self.engine.max_model_len,
        }

    def check(self, body: Body, prompts: int) -> None:
        """Raise BadRequest for everything that is wrong with a body, before any work for it."""
        self.check_model(body.model)
        body.check()
        answers = prompts * (body.choices + body.scores_prompts)
        if answers > self.thread.max_queue:
            raise BadRequest(
                f"one call for {answers} answers, but the queue takes {self.thread.max_queue}: ask for fewer"
            )

    def chat_tokens(self, messages: Sequence[Message], generate: bool = True, options: dict | None = None) -> list[int]:
        """Return the token ids of messages in the checkpoint's chat template. Raise BadRequest if it refuses them."""
        if self.tokenizer is None or self.tokenizer.chat_template is None:
            raise BadRequest(f"the model {self.name!r} has no chat template: use /v1/completions", "messages")
        template, options = self.tokenizer.apply_chat_template, options or {}
        if taken := options.keys() & {*inspect.signature(template).parameters, "messages"}:
            message = f"chat_template_kwargs may not set {shortened(min(taken))}: leave it out"
            raise BadRequest(message, "chat_template_kwargs")
        plain = [message.plain() for message in messages]
        check_prompt_length(sum(len(one["content"]) for one in plain), self.tokenizer, self.engine.config)
        try:
            check_characters(json.dumps([plain, options], ensure_ascii=False))
            return template(plain, add_generation_prompt=generate, return_dict=True, **options)["input_ids"]
        except Exception as error:  # a template is a program of the checkpoint's authors, and may raise anything
            raise BadRequest(f"the chat template refuses these messages: {shortened(error)}", "messages") from error

    async def submit(self, body: Body, prompts: Sequence[str | list[int]], answers: Answers, arrived: float) -> Call:
        """Queue a request for each choice of each prompt, and one for each prompt to be scored: all or none."""
        params, choices, scored = body.params(self.defaults), [], []
        if body.scores_prompts:
            scored = [(prompt, ScoringParams(max_tokens=1, logprobs=params.logprobs)) for prompt in prompts]
        if body.max_tokens != 0 or not body.echoes:
            for prompt, number in itertools.product(prompts, range(body.choices)):
                # Each choice has its own seed, so that the choices of one prompt differ.
                seed = None if params.seed is None else (params.seed + number) % 2**63
                choices.append((prompt, replace(params, seed=seed)))
        streams = await self.thread.submit_all(scored + choices, arrived) if scored + choices else []
        return Call(body, answers, scored=streams[: len(scored)], streams=streams[len(scored) :])

    async def echoes(self, call: Call, prompts: Sequence[str | list[int]]) -> list[Echo]:
        """Return the prompts that the answers begin with. Raise EngineDead if their scores are incomplete."""
        first = call.scored or call.streams[:: call.body.choices]
        if first:
            token_ids = [stream.request.prompt_token_ids for stream in first]
        else:  # the call is for neither scores nor answers, and so has no requests
            check = partial(prompt_tokens, tokenizer=self.tokenizer, config=self.engine.config)
            token_ids = [await self.thread.beside(check, prompt) for prompt in prompts]
        await self.finished(call.scored)
        echoes = []
        for number, (prompt, ids) in enumerate(zip(prompts, token_ids, strict=True)):
            text = prompt if isinstance(prompt, str) else self.tokenizer.decode(ids) if self.tokenizer else ""
            echoes.append(Echo(ids, text, call.scored[number].request.logprobs if call.scored else None))
        return echoes

    async def finished(self, streams: Sequence) -> None:
        """Wait for the end of all streams. Raise EngineDead if one is incomplete."""
        for stream in streams:
            if await stream.finished() is None or stream.request.finish_reason in FAILED:
                raise EngineDead(str(self.thread.error or NOT_COMPLETED))

    async def respond(
        self, http: Request, body: Body, prompts: Sequence[str | list[int]], answers: Answers
    ) -> Response:
        """Return the answer, whole or streamed. If the client disconnects, abort its requests."""
        call = await self.submit(body, prompts, answers, http.state.arrived)
        watch = asyncio.create_task(abort_when_gone(http, self.thread, call.scored + call.streams))
        if body.echoes:
            call.echoes = await self.echoes(call, prompts)
        if body.stream:
            content = self.events(call, watch)
            return StreamingResponse(content, media_type="text/event-stream", headers=SSE_HEADERS)
        await self.finished(call.streams)
        tokens = sum(len(stream.request.token_ids) for stream in call.streams)
        choices = [await call.whole_choice(index) for index in range(call.choices)]
        watch.cancel()
        return Response(await sliced_json(answers.answer(choices, call.usage(tokens))), media_type="application/json")

    async def events(self, call: Call, watch: asyncio.Task) -> AsyncIterator[str]:
        """Yield server-sent events: a chunk for each piece, the usage if requested, and `[DONE]`."""
        body, answers = call.body, call.answers
        running = {"usage": None} if body.include_usage else {}
        tokens = 0  # sent so far; the engine may be ahead
        async for index, piece in call.pieces():
            if piece.finish_reason in FAILED:
                yield event(dump(error_object(str(self.thread.error or NOT_COMPLETED), 500)))
                break
            tokens += len(piece.token_ids)
            if body.continuous_usage:
                running = {"usage": call.usage(tokens)}
            yield event(await sliced_json(answers.chunk_of([await call.chunk_choice(index, piece)], **running)))
        else:
            if body.include_usage:
                yield event(dump(answers.chunk_of([], usage=call.usage(tokens))))
        yield event("[DONE]")
        watch.cancel()


def event(data: str) -> str:
    return f"data: {data}\n\n"


def router(service: Service) -> APIRouter:
    routes = APIRouter(route_class=OpenAIRoute)

    @routes.post("/v1/completions")
    async def completions(http: Request, body: CompletionBody):
        service.check(body, len(body.prompts))
        answers = CompletionAnswers(service.name, service.tokenizer, service.token_texts)
        return await service.respond(http, body, body.prompts, answers)

    @routes.post("/v1/chat/completions")
    async def chat_completions(http: Request, body: ChatBody):
        service.check(body, 1)
        prompt = await service.thread.beside(service.chat_tokens, body.messages, True, body.chat_template_kwargs)
        answers = ChatAnswers(service.name, service.tokenizer, service.token_texts)
        return await service.respond(http, body, [prompt], answers)

    @routes.get("/v1/models")
    async def models():
        return Json({"object": "list", "data": [service.model_card()]})

    @routes.get("/v1/models/{name:path}")
    async def model(name: str):
        service.check_model(name)
        return Json(service.model_card())

    return routes


async def abort_when_gone(http: Request, engine_thread, streams: Sequence) -> None:
    """Abort the streams when the client disconnects: after the body, the only message left is the disconnection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    for stream in streams:
        engine_thread.abort(stream)
