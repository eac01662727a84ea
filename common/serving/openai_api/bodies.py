"""The fields of a body, and their translation to prompts and `SamplingParams`.

A field that would change the answer and is not supported is refused by name: the client would otherwise believe that
the answer has it. Fields that change nothing, such as `metadata`, are ignored.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import from_json

from common.errors import shortened
from common.sampling import SamplingParams
from common.sampling_params import MAX_BIASES
from common.serving.errors import BadRequest
from common.serving.generate_api import PARAMETERS
from common.structured_output import Structure

from .structured import MAX_TOOLS, CallParser, Form, ResponseFormat, StructuredOutputs, Tool, tool_form

TEXT = ResponseFormat(type="text")
MAX_CHOICES = 128  # the field n, as in OpenAI's API
MAX_PROMPTS = 2048  # in one call, as in OpenAI's API for embeddings
IGNORED = {
    "name", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "request_id",
    "parallel_tool_calls", "prompt_cache_retention", "prompt_cache_options", "max_tool_calls", "reasoning.summary",
}  # fmt: skip
# Fields that are not supported, and the values with which they change nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "skip_special_tokens": (True,),
    "use_beam_search": (False,),
    "echo": (False,),
    "background": (False,),
    "truncation": ("disabled",),
    "include": ([], ["reasoning.encrypted_content"]),  # No answer has reasoning.
    "prompt": (),
    "text.verbosity": ("medium",),
}

# Without it, pydantic checks a body with a million mistakes to its end, once for each type that a field may have.
FAIL_FAST = Field(fail_fast=True)
# JSON has one kind of numbers, and some clients write 4.0.
Int = Annotated[int, BeforeValidator(lambda x: int(x) if isinstance(x, float) and x.is_integer() else x)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], FAIL_FAST]
Prompts = Field(max_length=MAX_PROMPTS, fail_fast=True)


class StreamOptions(BaseModel, strict=True, extra="forbid"):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers, which this server never adds


class Body(BaseModel, strict=True, extra="allow"):
    """The fields that completions and chat completions share. None means the default."""

    model: str | None = None
    max_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    n: Annotated[Int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_BIASES)] | None = None
    min_tokens: Int | None = None
    stop: str | Annotated[list[str], FAIL_FAST] | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    seed: Annotated[Int, Field(ge=-(2**63), lt=2**63)] | None = None
    ignore_eos: bool | None = None
    priority: Int | None = None
    user: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="after")
    def check(self):
        """Raise BadRequest for unknown and unsupported fields, and for fields that contradict each other."""
        for name, value in (self.model_extra or {}).items():
            if value is None or name in IGNORED or value in UNSUPPORTED.get(name, ()):
                continue
            if name in UNSUPPORTED:
                raise BadRequest(f"{name} is not supported by this server: leave it out", name)
            raise BadRequest(f"unknown field {shortened(name)}", name if len(name) < 80 else None)
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options need a stream: send stream: true with them", "stream_options")
        if self.structured_outputs is not None and (self.response_format or TEXT).type != "text":
            raise BadRequest(
                "response_format and structured_outputs contradict each other: give one", "response_format"
            )
        return self

    def form(self, tags: Sequence[str]) -> Form | None:
        """Return what makes the answer's grammar; None for free text. tags: around calls, as for `tool_grammar`."""
        field = self.structured_outputs or self.response_format
        return field and field.form()

    def params(self, defaults: dict[str, float], structure: Structure | None = None) -> SamplingParams:
        """Return the parameters: the body's, then the defaults, then the API's own (temperature and top_p are 1)."""
        given = {name: value for name, value in self if name in PARAMETERS and value is not None}
        if self.seed is not None:
            given["seed"] = self.seed % 2**63
        given |= {"max_tokens": self.most_tokens, "logprobs": self.most_logprobs, "structure": structure}
        return SamplingParams(**{"temperature": 1.0} | defaults | given)

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def echoes(self) -> bool:
        """Return whether each answer begins with its prompt: completions alone have this field."""
        return bool(getattr(self, "echo", None))

    @property
    def scores_prompts(self) -> bool:
        """Return whether prompts are scored: with `echo`, for their log-probabilities or if nothing is generated."""
        return self.echoes and (self.most_logprobs is not None or self.max_tokens == 0)


class CompletionBody(Body):
    """`POST /v1/completions`. A prompt is a text or a list of token ids; a list of prompts gets an answer for each."""

    prompt: str | TokenIds | Annotated[list[str], Prompts] | Annotated[list[TokenIds], Prompts]
    logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None

    @model_validator(mode="after")
    def check_prompts(self):
        if self.prompt in ("", []) or (isinstance(self.prompt, list) and any(one in ("", []) for one in self.prompt)):
            raise BadRequest("the prompt is empty: give at least one token", "prompt")
        if self.max_tokens == 0 and not self.echo:
            raise BadRequest("max_tokens is 0, which generates nothing: give at least 1, or echo: true", "max_tokens")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        several = isinstance(self.prompt, list) and isinstance(self.prompt[0], (str, list))
        return self.prompt if several else [self.prompt]

    @property
    def most_tokens(self) -> int:
        # 16 is the API's default. SamplingParams refuses 0: with 0, no choice goes to the engine, and 1 is not used.
        return 16 if self.max_tokens is None else self.max_tokens or 1

    @property
    def most_logprobs(self) -> int | None:
        return self.logprobs


class TextPart(BaseModel, strict=True, extra="allow"):
    type: Literal["text"]
    text: str


class Message(BaseModel, strict=True, extra="allow"):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], FAIL_FAST] | None = None
    tool_calls: list[dict[str, Any]] | None = None  # of an earlier answer, with arguments as JSON
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, validation_alias=AliasChoices("reasoning_content", "reasoning"))

    @model_validator(mode="after")
    def check(self):
        for name, value in (self.model_extra or {}).items():
            if value not in (None, []) and name not in IGNORED | {"refusal", "reasoning"}:
                raise BadRequest(f"messages with {shortened(name)} are not supported: leave it out")
        if self.content is None and self.role != "assistant":
            raise BadRequest(f"a message of the role {self.role!r} has no content: give a text")
        return self

    def plain(self) -> dict[str, Any]:
        """Return what templates may read: all that is given, the role "system" for developers."""
        plain = {"content": ""} | self.model_dump(exclude_none=True)
        if self.role == "developer":
            plain["role"] = "system"
        if plain.pop("tool_calls", None):
            plain["tool_calls"] = [_with_arguments(call) for call in self.tool_calls]
        return plain


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of an earlier answer as templates expect it, with its arguments as an object.

    In an answer that was cut, the arguments may be half an object, or empty: take what is there.
    """
    try:
        arguments = call["function"]["arguments"] or "{}"
        if isinstance(arguments, str):
            arguments = from_json(arguments.strip() or "{}", allow_partial="trailing-strings")
        function = call["function"] | {"arguments": arguments}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        message = 'tool_calls need {"function": {"name", "arguments"}}, with arguments as the text of a JSON object'
        raise BadRequest(message, "messages") from error
    return call | {"function": function}


class Conversation(BaseModel, strict=True):
    """What the chat template gets beside the messages."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the template, such as enable_thinking for Qwen3
    reasoning_effort: str | None = None  # one more variable: templates without reasoning do not read it
    add_generation_prompt: bool | None = None  # None: True, unless the last message is to be continued.
    continue_final_message: bool | None = None

    @model_validator(mode="after")
    def check_ending(self):
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt contradict each other: send one"
            raise BadRequest(message, "continue_final_message")
        return self

    @property
    def variables(self) -> dict[str, Any]:
        """Return the variables of the template beside messages and tools."""
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        return effort | (self.chat_template_kwargs or {})

    @property
    def ending(self) -> dict[str, bool]:
        """Return how the prompt ends: with a continued message, or with the beginning of an answer, or with neither."""
        continued = bool(self.continue_final_message)
        generate = not continued if self.add_generation_prompt is None else self.add_generation_prompt
        return {"continue_final_message": continued, "add_generation_prompt": generate}


class ChatBody(Body, Conversation):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None  # None: auto, if there are tools
    parallel_tool_calls: bool | None = None  # False: one call at most

    @model_validator(mode="after")
    def check_logprobs(self):
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("top_logprobs needs log-probabilities: send logprobs: true with it", "top_logprobs")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise BadRequest("tool_choice needs tools: send them with it", "tool_choice")
        return self

    @property
    def calls_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    def form(self, tags: Sequence[str]) -> Form | None:
        answer = super().form(tags)
        if not self.calls_tools:
            return answer
        choice, several = self.tool_choice or "auto", self.parallel_tool_calls is not False
        return tool_form(self.tools, choice, several, tags, answer)

    def call_parser(self) -> CallParser:
        """Return the parser of an answer that may call tools, in the syntax that `form` allows."""
        choice = self.tool_choice or "auto"
        free_text = choice == "auto" and super().form(()) is None
        named = choice.function.name if isinstance(choice, Tool) else None
        return CallParser([tool.function.name for tool in self.tools], free_text, named)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def most_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeBody(Conversation, strict=True, extra="forbid"):
    """`POST /tokenize`. Either a prompt, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None  # None: True for a prompt. Templates write their own.
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def check(self):
        if (self.prompt is None) == (self.messages is None):
            raise BadRequest("give either a prompt or messages", "prompt")
        given = {name for name, value in self if value not in (None, False)}
        own = given & Conversation.model_fields.keys() - {"add_generation_prompt"}
        if self.messages is None and own:
            raise BadRequest(f"{min(own)} changes no prompt: send messages with it", min(own))
        if self.messages is not None and self.add_special_tokens:
            raise BadRequest("the chat template writes all special tokens: leave it out", "add_special_tokens")
        return self


class DetokenizeBody(BaseModel, strict=True, extra="forbid"):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds
