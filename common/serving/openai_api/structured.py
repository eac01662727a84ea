"""The fields of a body that constrain its answer, and tool calls: their grammars, and how to find calls in a text.

A call is written as Qwen's templates teach it, each between two tags:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

The grammar fixes each character outside of the arguments, so a text is taken apart along it, without guessing.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from common.grammars import END, TAG, choice_grammar, json_grammar, lark_grammar, regex_grammar, tool_grammar
from common.serving.errors import BadRequest

Form = Callable[[], str]  # It makes a grammar. It runs in another process, since that may take long.
TAIL = f"}}\n{END}"  # follows the arguments of a call
MAX_TOOLS = 128  # as in OpenAI's API
LONGEST_NAME = 64  # characters of a function's name, as in OpenAI's API


class JsonSchema(BaseModel, strict=True):
    """A schema with a name. Unless it is strict, keywords that cannot be enforced are ignored."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field({}, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel, strict=True, extra="forbid"):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def check(self):
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise BadRequest("response_format needs a json_schema if, and only if, its type is json_schema")
        return self

    def form(self) -> Form | None:
        if self.type == "json_schema":
            return partial(json_grammar, self.json_schema.schema_, lenient=not self.json_schema.strict)
        return partial(json_grammar, {"type": "object"}) if self.type == "json_object" else None


class StructuredOutputs(BaseModel, strict=True, extra="forbid"):
    """vLLM's field: exactly one of these."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: Literal[True] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None

    @model_validator(mode="before")
    @classmethod
    def given(cls, fields: Any) -> Any:
        """Return what is given: vLLM's own class, written as JSON, names all of its fields."""
        return {k: v for k, v in fields.items() if v not in (None, False)} if isinstance(fields, dict) else fields

    @model_validator(mode="after")
    def check(self):
        if len(self.model_fields_set) != 1:
            raise BadRequest("structured_outputs needs exactly one of json, json_object, regex, choice, grammar")
        return self

    def form(self) -> Form:
        [(kind, value)] = self.model_dump(exclude_none=True).items()
        if not kind.startswith("json"):
            return partial({"regex": regex_grammar, "choice": choice_grammar, "grammar": lark_grammar}[kind], value)
        schema = {"type": "object"} if kind == "json_object" else value
        try:
            return partial(json_grammar, json.loads(schema) if isinstance(schema, str) else schema)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"structured_outputs.json is no schema: {error}", "structured_outputs") from error


class Function(BaseModel, strict=True):
    name: Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_-]{{1,{LONGEST_NAME}}}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel, strict=True):
    type: Literal["function"]
    function: Function


def tool_form(
    tools: Sequence[Tool], choice: str | Tool, several: bool, tags: Sequence[str], answer: Form | None
) -> Form:
    """Return what makes the grammar of answers that call tools.

    A named tool: its arguments alone. "required": at least one call. "auto": calls, or an answer of another form (None:
    text). several: whether one answer may have several calls. tags: as for `tool_grammar`.
    """
    given = [tool.function for tool in tools]
    functions = [(one.name, {"type": "object"} | (one.parameters or {}), bool(one.strict)) for one in given]
    if isinstance(choice, str):
        return partial(tool_grammar, functions, tags, several, optional=choice == "auto", answer=answer)
    for name, schema, strict in functions:
        if name == choice.function.name:
            return partial(json_grammar, schema, lenient=not strict)
    raise BadRequest(f"tool_choice names {choice.function.name!r}, which is not in tools", "tool_choice")


def tags_of_calls(tokenizer) -> list[str]:
    """Return the tags around a call in Lark's notation.

    A tag may be a token of its own, as in Qwen3. The library then matches it by its id, and not by its text.
    """
    known = tokenizer.get_added_vocab() if tokenizer else {}
    return [f"<[{known[tag]}]>" if tag in known else json.dumps(tag) for tag in (TAG, END)]


class CallParser:
    """Takes a growing text apart along the grammar that made it: text, tag, name, arguments to their end, text again.

    names: of the tools. free_text: whether text may stand around calls; otherwise an answer that does not begin with a
    tag has no calls. named: if given, the whole text is the arguments of this function.
    """

    def __init__(self, names: Sequence[str], free_text: bool, named: str | None = None):
        self.head = re.compile(rf'{TAG}\n{{"name": "({"|".join(names)})", "arguments": ')
        self.free_text, self.name = free_text, named  # name: of the call whose arguments come next
        self.rest, self.done = "", False  # rest: not taken apart yet
        self.count = 0  # calls so far
        self.content, self.calls = "", []  # what the newest piece has added
        self.steps = self._steps()

    def feed(self, piece: str, done: bool) -> tuple[str, list[tuple[int, str | None, str]]]:
        """Return what a piece adds: text, and for calls (number, name when it begins, a part of its arguments as JSON).

        done: whether it is the last piece. A call that is cut there has the arguments so far.
        """
        self.rest, self.done, self.content, self.calls = self.rest + piece, done, "", []
        next(self.steps)
        return self.content, self.calls

    def _steps(self) -> Iterator[None]:
        """Take `rest` apart. Each yield waits for the next piece."""
        if not self.free_text and self.name is None:
            while TAG.startswith(self.rest):
                yield
            other = not self.rest.startswith(TAG)
            while other:
                self.content, self.rest = self.rest, ""
                yield
        while True:
            if self.name is None:
                yield from self._text()
                while not (match := self.head.match(self.rest)):
                    yield
                self.name, self.rest = match[1], self.rest[match.end() :]
            yield from self._arguments()
            while not self.rest.startswith(TAIL):
                yield
            self.name, self.rest = None, self.rest.removeprefix(TAIL)

    def _text(self) -> Iterator[None]:
        """Move text to `content`, up to a tag. Blanks alone after a call are not text."""
        said = not self.count
        while True:
            place = end = self.rest.find(TAG)
            if place < 0:  # The end of `rest` may begin a tag: it waits for the next piece.
                held = next(n for n in range(len(TAG) - 1, -1, -1) if self.rest.endswith(TAG[:n]))
                end = len(self.rest) - held * (not self.done)
            if said or self.rest[:end].strip():
                said = True
                self.content += self.rest[:end]
                self.rest = self.rest[end:]
            if place >= 0:
                self.rest = self.rest.lstrip()
                return
            yield

    def _arguments(self) -> Iterator[None]:
        """Move arguments to `calls`, up to the brace after them: the first that closes what they have not opened."""
        self.count += 1
        name, depth, quoted, escaped = self.name, 0, False, False
        while True:
            end = 0
            for character in self.rest:
                if not escaped:
                    quoted ^= character == '"'
                    depth += 0 if quoted else (character in "{[") - (character in "}]")
                escaped = quoted and character == "\\" and not escaped
                if depth < 0:
                    break
                end += 1
            if name or end:
                self.calls.append((self.count - 1, name, self.rest[:end]))
            name, self.rest = None, self.rest[end:]
            if depth < 0:
                return
            yield
