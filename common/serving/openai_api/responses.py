"""`POST /v1/responses`: a chat in the words of OpenAI's newer API.

A body becomes a chat's, and goes the same way from there. An answer is a list of items, a message for each text and one
item for each call; streamed, they grow by events. The server keeps no response, so clients send whole conversations.
"""

import itertools
import re
import reprlib
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import Field, model_validator

from common.serving.engine_thread import Piece
from common.serving.errors import BadRequest, Json, dump

from .answers import Answer, call, new_id
from .bodies import ChatBody, Int, Message
from .routes import NOT_COMPLETED, SSE_HEADERS, Service
from .structured import ResponseFormat
from .templates import text_of

Object = dict[str, Any]
ITEMS = "message, function_call, function_call_output, reasoning"
TEXTS = {"input_text", "output_text"}  # types of parts
UNREAD = {"type", "id", "status", "phase"}  # fields of messages that are not for the model
TEXT = -1
GROWING = {"message": "output_text", "function_call": "function_call_arguments"}  # in the names of events
STATUS = {"stop": "completed", "length": "incomplete"}  # by finish reason; others have failed


class ResponsesBody(ChatBody):
    """A chat's fields under the names of this API, nested ones as `text.format`."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True, alias="input")]
    instructions: str | None = None
    max_completion_tokens: Int | None = Field(None, alias="max_output_tokens")
    text: Object | None = None
    response_format: ResponseFormat | None = Field(None, alias="text.format")
    reasoning: Object | None = None
    reasoning_effort: str | None = Field(None, alias="reasoning.effort")
    metadata: dict[str, str] | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    top_logprobs: Literal[0] | None = None

    @model_validator(mode="before")
    @classmethod
    def as_chat(cls, given: Any) -> Any:
        """Return the body with values as chat has them. What is malformed stays, and its field refuses it."""
        if not isinstance(given, dict):
            return given
        for name in ("previous_response_id", "conversation"):
            if given.get(name) is not None:
                raise BadRequest(f"{name}: this server keeps no responses: send the whole conversation as input", name)
        body = dict(given)
        for name in ("text", "reasoning"):
            if isinstance(given.get(name), dict):
                body |= {f"{name}.{key}": value for key, value in given[name].items()}
        for name, kind in (("tool_choice", "function"), ("text.format", "json_schema")):
            body[name] = _nested(body.get(name), kind)
        if isinstance(tools := given.get("tools"), list):
            body["tools"] = [_nested(tool, "function") for tool in tools]
        words, items = given.get("instructions"), given.get("input")
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        if isinstance(items, list) and all(isinstance(item, dict) for item in items):
            instructed = [{"role": "system", "content": words}] if words and isinstance(words, str) else []
            body["input"] = instructed + _messages(items)
        return body


def _nested(fields: Any, kind: str) -> Any:
    """Return an object of this type as chat has it, with an object inside; anything else as it is."""
    if not isinstance(fields, dict) or fields.get("type") != kind:
        return fields
    return {"type": kind, kind: {name: value for name, value in fields.items() if name != "type"}}


def _messages(items: list[Object]) -> list[Object]:
    """Return items as messages. Thoughts, texts and calls of the assistant in a row become one message."""
    messages: list[Object] = []
    for index, item in enumerate(items):
        try:
            message, last = _message(item), messages[-1] if messages else {}
            joined = message["role"] == last.get("role") == "assistant"
        except (AttributeError, KeyError, TypeError) as error:
            raise BadRequest(f"input[{index}] is malformed: {error!r}", "input") from error
        if joined and message.keys() & last.keys() <= {"role", "tool_calls"}:
            last.setdefault("tool_calls", []).extend(message.pop("tool_calls", []))
            last |= message
        else:
            messages.append(message)
    return messages


def _message(item: Object) -> Object:
    """Return an item as a message, or as a part of one if it is the assistant's."""
    match item.get("type") or "message":
        case "message":
            rest = {name: value for name, value in item.items() if name not in UNREAD}
            return rest | {"content": _content(item["content"])}
        case "reasoning":
            return {"role": "assistant", "reasoning_content": text_of(item.get("content") or item["summary"])}
        case "function_call":
            called = call(item["name"], item["arguments"]) | {"id": item["call_id"]}
            return {"role": "assistant", "tool_calls": [called]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])}
        case other:
            raise BadRequest(f"an item's type is {reprlib.repr(other)}, but this server takes {ITEMS}", "input")


def _content(content: Any) -> Any:
    """Return a content with the texts among its parts as chat has them."""
    if not isinstance(content, list):
        return content
    return [{"type": "text", "text": part["text"]} if part.get("type") in TEXTS else part for part in content]


class ResponseAnswer(Answer):
    """The items of an answer, and the events that report their growth. Only the last item grows."""

    prefix = "resp_"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.parser = self.body.call_parser() if self.body.calls_tools else None
        self.items: list[Object] = []
        self.number: int | None = None  # of the call in the last item, or TEXT
        self.grown: list[str] = []  # text or arguments of the last item, in pieces
        self.tokens = 0
        self.events = itertools.count()

    def grow(self, piece: Piece) -> Iterator[Object]:
        """Yield the events of a piece. The last piece ends the response, and the last event has all of it."""
        self.tokens += len(piece.token_ids)
        *lines, rest = re.split(r"(?<=\n)", piece.text)
        for line, done in [*((line, False) for line in lines), (rest, piece.finish_reason is not None)]:
            # A line has text or calls, never both, so a whole answer has its items in the order of a streamed one.
            text, parts = self.parser.feed(line, done) if self.parser else (line, [])
            if text or (done and not parts and not self.items):  # an empty answer is an empty message
                parts = [(TEXT, None, text)]
            for number, name, part in parts:
                if number != self.number:
                    yield from self._open(number, name)
                self.grown.append(part)
                yield self._inside(f"{GROWING[self.items[-1]['type']]}.delta", delta=part)
        if piece.finish_reason is not None:
            status = STATUS.get(piece.finish_reason, "failed")
            yield from self._close("completed" if status == "completed" else "incomplete")
            yield self.event(status, response=self.response(status))

    def _open(self, number: int, name: str | None) -> Iterator[Object]:
        """Close the last item and begin another: a call of a function with this name, or a message."""
        yield from self._close("completed")
        self.number = number
        item = {"type": "message", "id": f"msg_{new_id()}", "role": "assistant", "content": []}
        if name is not None:
            called = {"call_id": f"call_{new_id()}", "name": name, "arguments": ""}
            item = {"type": "function_call", "id": f"fc_{new_id()}"} | called
        self.items.append(item | {"status": "in_progress"})
        yield self.event("output_item.added", item=self.items[-1], output_index=len(self.items) - 1)
        if name is None:
            yield self._inside("content_part.added", part=_part(""))

    def _close(self, status: str) -> Iterator[Object]:
        """End the last item, if there is one."""
        if not self.items:
            return
        item, whole = self.items[-1], "".join(self.grown)
        self.grown, item["status"] = [], status
        if item["type"] == "message":
            item["content"] = [_part(whole)]
            yield self._inside("output_text.done", text=whole)
            yield self._inside("content_part.done", part=_part(whole))
        else:
            item["arguments"] = whole
            yield self._inside("function_call_arguments.done", name=item["name"], arguments=whole)
        yield self.event("output_item.done", item=item, output_index=len(self.items) - 1)

    def _inside(self, kind: str, **fields: Any) -> Object:
        """Return an event within the last item."""
        if self.items[-1]["type"] == "message":
            fields |= {"content_index": 0, "logprobs": []}
        return self.event(kind, item_id=self.items[-1]["id"], output_index=len(self.items) - 1, **fields)

    def event(self, kind: str, **fields: Any) -> Object:
        return {"type": f"response.{kind}", "sequence_number": next(self.events), **fields}

    def response(self, status: str) -> Object:
        """Return the response so far. It repeats no tools and no schema, which may be large."""
        body, choice = self.body, self.body.tool_choice or "auto"
        failure = {"code": "server_error", "message": str(self.service.thread.error or NOT_COMPLETED)}
        return self.head | {
            "object": "response",
            "created_at": self.head["created"],
            "status": status,
            "error": failure if status == "failed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self.items,
            "usage": None if status == "in_progress" else self.usage(self.tokens),
            "instructions": body.instructions,
            "metadata": body.metadata or {},
            "temperature": body.temperature,
            "top_p": body.top_p,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": choice if isinstance(choice, str) else {"type": "function", "name": choice.function.name},
            "tools": [],
        }

    def usage(self, output_tokens: int) -> Object:
        usage = super().usage(output_tokens)
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }


def _part(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def events(answer: ResponseAnswer) -> AsyncIterator[str]:
    """Yield server-sent events: they have names here, and no `[DONE]` ends them."""
    yield named(answer.event("created", response=answer.response("in_progress")))
    async for _, piece in answer.pieces():
        for event in answer.grow(piece):
            yield named(event)
    answer.watch.cancel()


def named(event: Object) -> str:
    return f"event: {event['type']}\ndata: {dump(event)}\n\n"


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/responses")
    async def responses(http: Request, body: ResponsesBody):
        answer = await service.submit(ResponseAnswer, body, http)
        if body.stream:
            return StreamingResponse(events(answer), media_type="text/event-stream", headers=SSE_HEADERS)
        await service.finished(answer.streams)
        answer.watch.cancel()
        *_, last = answer.grow(*answer.whole_pieces())
        return Json(last["response"])

    return routes
