"""The fields of a body that give its answer a form, and tool calls: what makes their grammar, and calls in a text.

A call is written as Qwen's templates teach it, each between two tags, or bare where a template knows no calls:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

The grammar fixes each character outside of the arguments, so a text is taken apart without guessing.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from common.grammars import END, TAG, choice_grammar, json_grammar, lark_grammar, regex_grammar, tool_grammar
from common.serving.errors import BadRequest

Form = Callable[[], str]  # makes a grammar, in another process: it may take long
HEAD, TAIL = '{"name": "', '", "arguments": '  # around a function's name
CALL = re.compile(rf"{re.escape(HEAD)}([\w-]+){TAIL}")
# What may begin a tag or a call at the end of a text; a tag that is a special token leaves its line's end alone there.
BEGINNING = re.compile(
    "|".join(
        [rf"{TAG[:i]}\Z" for i in range(1, len(TAG))]
        + [rf"\n?{re.escape(HEAD[:i])}\Z" for i in range(len(HEAD))]
        + [rf"\n?{re.escape(HEAD)}[\w-]*{TAIL[:i]}\Z" for i in range(len(TAIL))]
    )
)
MOST_TOOLS = 128  # as in OpenAI's API
LONGEST_NAME = 64  # of a function, as there


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
        if self.regex is not None:
            return partial(regex_grammar, self.regex)
        if self.choice is not None:
            return partial(choice_grammar, self.choice)
        if self.grammar is not None:
            return partial(lark_grammar, self.grammar)
        schema = {"type": "object"} if self.json_object else self.json_
        try:
            return partial(json_grammar, json.loads(schema) if isinstance(schema, str) else schema)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"structured_outputs.json is no schema: {error}", "structured_outputs") from error


class Function(BaseModel, strict=True):
    name: Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_-]{{1,{LONGEST_NAME}}}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def schema_of_arguments(self) -> dict[str, Any]:
        return {"type": "object"} | (self.parameters or {})


class Tool(BaseModel, strict=True):
    type: Literal["function"]
    function: Function


class NamedFunction(BaseModel, strict=True):
    name: str


class NamedTool(BaseModel, strict=True):
    type: Literal["function"]
    function: NamedFunction


def tool_form(tools: Sequence[Tool], choice: str | NamedTool, several: bool, tokenizer) -> Form:
    """Return what makes the grammar of answers that call tools. tokenizer: the model's, with its chat template.

    A named tool: its arguments alone. "required": at least one call. "auto": text, and calls if the model begins one;
    raise BadRequest if the template teaches no format of calls. several: whether one answer may have several calls.
    """
    functions = [tool.function for tool in tools]
    if isinstance(choice, NamedTool):
        for function in functions:
            if function.name == choice.function.name:
                return partial(json_grammar, function.schema_of_arguments(), lenient=not function.strict)
        raise BadRequest(f"tool_choice names {choice.function.name!r}, which is not in tools", "tool_choice")
    tags: list[str] = []
    if TAG in (getattr(tokenizer, "chat_template", None) or ""):
        # A tag may be a token of its own, as in Qwen3: the library then takes it for none of the text, but by its id.
        ids = tokenizer.get_added_vocab()
        tags = [f"<[{ids[tag]}]>" if tag in ids else json.dumps(tag) for tag in (TAG, END)]
    elif choice == "auto":
        message = (
            "tool_choice 'auto' needs a chat template with a known format of calls: send 'required' or name a tool"
        )
        raise BadRequest(message, "tool_choice")
    described = [(function.name, function.schema_of_arguments(), bool(function.strict)) for function in functions]
    return partial(tool_grammar, described, tags, free_text=choice == "auto", several=several)


def parse_calls(text: str, done: bool) -> tuple[str, list[tuple[str, str]]]:
    """Return what a text says before its first call, and (name, arguments as JSON) of each call.

    Unless the text is done, without its last call if that is incomplete, and without what may begin a tag.
    """
    calls, first = [], None
    for match in CALL.finditer(text):
        if first is None:
            first = text.rfind(TAG, 0, match.start())
            # A tokenizer leaves out a tag that is a special token, but not the line's end behind it.
            first = len(text[: match.start()].removesuffix("\n")) if first < 0 else first
        try:
            end = json.JSONDecoder().raw_decode(text, match.end())[1]
        except json.JSONDecodeError:
            if not done:
                break
            end = len(text)
        calls.append((match[1], text[match.end() : end]))
    if first is not None:
        return text[:first], calls
    if not done:
        place = text.find(TAG)
        if place < 0:  # look at the end alone: this is asked for each token of a long answer
            end = max(0, len(text) - len(f"\n{HEAD}{TAIL}") - LONGEST_NAME)
            place = BEGINNING.search(text, end).start()
        text = text[:place]
    return text, calls
