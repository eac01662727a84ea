"""The endpoints: OpenAI's under `/v1`, and vLLM's for evaluation tools."""

import asyncio
import importlib.metadata
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect
from transformers.convert_slow_tokenizer import bytes_to_unicode

from common.detokenizer import REPLACEMENT
from common.errors import shortened
from common.grammar_trial import Trials
from common.request import check_characters, check_prompt_length
from common.sampling_params import MAX_TENANT
from common.serving.engine_thread import Piece
from common.serving.errors import BadRequest, EngineDead, Json, dump, error_object
from common.serving.prompt_logprobs import PromptLogprobsParams
from common.structured_output import Structure

from .answers import FAILED, Answer, ChatAnswer, CompletionAnswer
from .bodies import Body, ChatBody, CompletionBody, DetokenizeBody, StreamOptions, TokenizeBody
from .structured import tags_of_calls
from .templates import template_of, text_of

SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must pass each event on at once
VERSION = "1.0.0"
BYTES = {character: byte for byte, character in bytes_to_unicode().items()}  # as byte-level vocabularies write them
NOT_COMPLETED = "the request could not be completed: send it again"


class Service:
    """What the routes share: the engine thread and the tokenizer."""

    def __init__(self, engine_thread, name: str, defaults: dict[str, float], scheduling: str = "fcfs"):
        self.thread, self.engine, self.name = engine_thread, engine_thread.engine, name
        self.tokenizer, self.defaults, self.scheduling = engine_thread.tokenizer, defaults, scheduling
        self.trials = Trials(self.engine.config.vocab_size)
        self.token_texts: dict[tuple[int, bool], str] = {}  # a cache: one answer may need 20 for each token
        self.any_text = self.tokenizer("a", add_special_tokens=False)["input_ids"] if self.tokenizer else []
        self.tags = tags_of_calls(self.tokenizer)

    def check_model(self, name: str | None) -> None:
        names = [self.name, *self.engine.adapters]
        if name is not None and name not in names:
            message = f"the model {shortened(name)} does not exist: use {' or '.join(map(repr, names))}"
            raise BadRequest(message, "model", status=404, code="model_not_found")

    def model_card(self, name: str) -> dict[str, Any]:
        adapter = self.engine.adapters.get(name)
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "local",
            "root": str(adapter.folder) if adapter else self.engine.name,
            "parent": self.name if adapter else None,
            "max_model_len": self.engine.max_model_len,
        }

    def any_tokenizer(self):
        """Return the tokenizer. Raise BadRequest if the model has none."""
        if self.tokenizer is None:
            raise BadRequest(f"the model {self.name!r} has no tokenizer: send prompts as token ids")
        return self.tokenizer

    def token_text(self, token_id: int, first: bool) -> str:
        """Return the text of a token. first: no text comes before it, and some decoders drop its blank."""
        if self.tokenizer is None:
            return f"token_id:{token_id}"
        if (token_id, first) not in self.token_texts:
            before, decode = [] if first else self.any_text, self.tokenizer.backend_tokenizer.decode
            text = decode([*before, token_id], skip_special_tokens=False)
            self.token_texts[token_id, first] = text[len(decode(before)) :]
        return self.token_texts[token_id, first]

    def token_bytes(self, token_id: int, first: bool) -> list[int] | None:
        """Return a token's UTF-8 bytes, even if they end within a character; None if the vocabulary does not tell."""
        text = self.token_text(token_id, first)
        if REPLACEMENT not in text:
            return list(text.encode())
        name = self.tokenizer.convert_ids_to_tokens(token_id)
        if name.startswith("<0x"):  # as SentencePiece writes a byte
            return [int(name[1:-1], 16)]
        return [BYTES[one] for one in name] if BYTES.keys() >= set(name) else None

    def chat_tokens(self, body: ChatBody | TokenizeBody) -> list[int]:
        """Return the token ids of messages in the checkpoint's chat template. Raise BadRequest if it refuses them."""
        if self.tokenizer is None or self.tokenizer.chat_template is None:
            raise BadRequest(f"the model {self.name!r} has no chat template: use /v1/completions", "messages")
        template, options = self.tokenizer.apply_chat_template, body.variables
        if taken := options.keys() & {*inspect.signature(template).parameters, "messages"}:
            message = f"chat_template_kwargs may not set {shortened(min(taken))}: leave it out"
            raise BadRequest(message, "chat_template_kwargs")
        plain = [message.plain() for message in body.messages]
        check_prompt_length(sum(len(text_of(one["content"])) for one in plain), self.tokenizer, self.engine.config)
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()] or None
        try:
            check_characters(json.dumps([plain, options, tools], ensure_ascii=False))
            chosen = template_of(self.tokenizer, tools)
            plain, tools = chosen.prepared(plain, tools)
            return template(plain, tools, return_dict=True, chat_template=chosen.text, **body.ending, **options)[
                "input_ids"
            ]
        except Exception as error:  # a template is a program of the checkpoint's authors, and may raise anything
            raise BadRequest(f"the chat template refuses these messages: {shortened(error)}", "messages") from error

    async def structure(self, body: Body) -> Structure | None:
        """Return the compiled grammar of a body's answers, None for free text. Raise InvalidInput if it is wrong."""
        form = body.form(self.tags)
        if form is None:
            return None
        structure = Structure(await self.trials.grammar(form), self.engine.name, tried=True)
        await asyncio.to_thread(structure.check)  # beside the engine and the event loop
        return structure

    async def submit(self, kind: type[Answer], body: Body, http: Request) -> Answer:
        """Queue a request for each choice of each prompt, and one for each prompt to be scored: all or none.

        If the client disconnects, abort them. Raise BadRequest for a call that this server cannot answer, before any
        work for it.
        """
        self.check_model(body.model)
        if body.priority and self.scheduling != "priority":
            raise BadRequest(
                "Priority scheduling is not enabled: start the server with --scheduling priority", "priority"
            )
        is_chat = isinstance(body, ChatBody)
        answers = (1 if is_chat else len(body.prompts)) * (body.choices + body.scores_prompts)
        if answers > self.thread.max_queue:
            raise BadRequest(
                f"one call for {answers} answers, but the queue takes {self.thread.max_queue}: ask for fewer"
            )
        prompts = [await self.thread.beside(self.chat_tokens, body)] if is_chat else body.prompts
        params, choices, scored = body.params(self.defaults, await self.structure(body)), [], []
        params = replace(params, tenant=http.state.tenant or (body.user or "")[:MAX_TENANT])
        if body.model not in (None, self.name):  # The engine refuses an adapter that was unloaded meanwhile.
            params = replace(params, adapter=body.model)
        if body.scores_prompts:
            if params.adapter:
                raise BadRequest(f"echo with logprobs scores prompts by the model {self.name!r} alone", "model")
            scored = [(prompt, PromptLogprobsParams(max_tokens=1, logprobs=params.logprobs)) for prompt in prompts]
        if body.max_tokens != 0 or not body.echoes:
            for prompt, number in itertools.product(prompts, range(body.choices)):
                # Each choice has its own seed, so that the choices of one prompt differ.
                seed = None if params.seed is None else (params.seed + number) % 2**63
                choices.append((prompt, replace(params, seed=seed)))
        streams = await self.thread.submit_all(scored + choices, http.state.arrived)
        answer = kind(self, body, prompts, streams[: len(scored)], streams[len(scored) :])
        answer.watch = asyncio.create_task(abort_when_gone(http, self.thread, streams))
        return answer

    async def echoes(self, answer: Answer) -> list[Piece]:
        """Return the prompts that the choices begin with. Raise EngineDead if their scores are incomplete."""
        await self.finished(answer.scored)
        echoes = []
        for prompt, stream in zip(answer.prompts, answer.scored or answer.streams[:: answer.body.choices], strict=True):
            ids = stream.request.prompt_token_ids
            text = prompt if isinstance(prompt, str) else self.tokenizer.decode(ids) if self.tokenizer else ""
            echoes.append(Piece(text, ids, stream.request.logprobs if answer.scored else []))
        return echoes

    async def finished(self, streams: Sequence) -> None:
        """Wait for the end of all streams. If one is incomplete, raise ClientDisconnect or EngineDead."""
        for stream in streams:
            if await stream.finished() is None or stream.request.finish_reason in FAILED:
                if self.thread.error is None and stream.request.finish_reason == "abort":
                    raise ClientDisconnect("the client has left")
                raise EngineDead(str(self.thread.error or NOT_COMPLETED))

    async def respond(self, kind: type[Answer], body: Body, http: Request) -> Response:
        """Return the answer, whole or streamed."""
        answer = await self.submit(kind, body, http)
        if body.echoes:
            answer.echoes = await self.echoes(answer)
        if body.stream:
            return StreamingResponse(self.events(answer), media_type="text/event-stream", headers=SSE_HEADERS)
        await self.finished(answer.streams)
        pieces = answer.whole_pieces()
        choices = [await answer.choice(index, piece, whole=True) for index, piece in enumerate(pieces)]
        usage = answer.usage(sum(len(piece.token_ids) for piece in pieces))
        answer.watch.cancel()
        return Response(answer.json(answer.whole, choices, usage=usage), media_type="application/json")

    async def events(self, answer: Answer) -> AsyncIterator[str]:
        """Yield server-sent events: a chunk for each piece, the usage if requested, and `[DONE]`."""
        asked = answer.body.stream_options or StreamOptions()
        running = {"usage": None} if asked.include_usage else {}
        tokens = 0  # sent so far; the engine may be ahead
        async for index, piece in answer.pieces():
            if piece.finish_reason in FAILED:
                yield event(dump(error_object(str(self.thread.error or NOT_COMPLETED), 500)))
                break
            tokens += len(piece.token_ids)
            if asked.include_usage and asked.continuous_usage_stats:
                running = {"usage": answer.usage(tokens)}
            if choice := await answer.choice(index, piece):
                yield event(answer.json(answer.chunk, [choice], **running))
        else:
            if asked.include_usage:
                yield event(answer.json(answer.chunk, [], usage=answer.usage(tokens)))
        yield event("[DONE]")
        answer.watch.cancel()


def event(data: str) -> str:
    return f"data: {data}\n\n"


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def completions(http: Request, body: CompletionBody):
        return await service.respond(CompletionAnswer, body, http)

    @routes.post("/v1/chat/completions")
    async def chat_completions(http: Request, body: ChatBody):
        return await service.respond(ChatAnswer, body, http)

    @routes.get("/v1/models")
    async def models():
        return Json({"object": "list", "data": [*map(service.model_card, [service.name, *service.engine.adapters])]})

    @routes.get("/v1/models/{name:path}")
    async def model(name: str):
        service.check_model(name)
        return Json(service.model_card(name))

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeBody):
        service.check_model(body.model)
        tokenizer = service.any_tokenizer()
        if body.messages is not None:
            tokens = await service.thread.beside(service.chat_tokens, body)
        else:
            check_characters(body.prompt)
            check_prompt_length(len(body.prompt), tokenizer, service.engine.config)
            encode = partial(tokenizer.__call__, add_special_tokens=body.add_special_tokens is not False)
            tokens = (await service.thread.beside(encode, body.prompt))["input_ids"]
        return Json(
            {
                "count": len(tokens),
                "max_model_len": service.engine.max_model_len,
                "tokens": tokens,
                "token_strs": tokenizer.convert_ids_to_tokens(tokens) if body.return_token_strs else None,
            }
        )

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeBody):
        service.check_model(body.model)
        size = service.engine.config.vocab_size
        if outside := [token_id for token_id in body.tokens if token_id >= size]:
            raise BadRequest(f"token id {outside[0]} is outside the vocabulary of {size} tokens", "tokens")
        return Json({"prompt": await service.thread.beside(service.any_tokenizer().decode, body.tokens)})

    @routes.get("/tokenizer_info")
    async def tokenizer_info():
        """Return what a client needs to build the same prompts itself: special tokens and chat template."""
        tokenizer = service.any_tokenizer()
        settings = json.loads(json.dumps(tokenizer.init_kwargs, default=str))  # types that JSON lacks become strings
        special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
        own = {"tokenizer_class": type(tokenizer).__name__, "chat_template": tokenizer.chat_template}
        return Json(settings | special | own)

    @routes.get("/version")
    async def version():
        return Json({"version": VERSION, "torch": importlib.metadata.version("torch")})

    return routes


async def abort_when_gone(http: Request, engine_thread, streams: Sequence) -> None:
    """Abort the streams when the client disconnects: after the body, the only message left is the disconnection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
    for stream in streams:
        engine_thread.abort(stream)
