"""What a chat template reads, and messages as it reads them.

A template is a program of the checkpoint's authors. Some read a content as a text, some as a list of parts, some both;
some know no system message, and many no tools. What one reads is found by rendering a probe, as llama.cpp does; vLLM
looks in the template's syntax tree for a loop over the content. A template that teaches no `<tool_call>` gets tools and
calls as texts, in the words of Qwen's.
"""

import json
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from common.errors import InvalidInput
from common.grammars import END, TAG

PROBE, BESIDE = "a-probe", "beside-it"
TOOLS = f"""# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
%s
</tools>

For each function call, return a json object with function name and arguments within {TAG}{END} XML tags:
{TAG}
{{"name": <function-name>, "arguments": <args-json-object>}}
{END}"""

Messages = list[dict[str, Any]]
dump = json.JSONEncoder(ensure_ascii=False).encode  # as templates write JSON


class Template:
    """One template of a tokenizer. text: its source."""

    def __init__(self, tokenizer, text: str):
        self.tokenizer, self.text = tokenizer, text
        user = {"role": "user", "content": PROBE}
        self.reads_texts = self._shows(user)
        self.reads_parts = self._shows(user | {"content": [{"type": "text", "text": PROBE, BESIDE: BESIDE}]})
        self.reads_system = self._shows({"role": "system", "content": PROBE}, user | {"content": "?"})

    def _shows(self, *messages: dict[str, Any]) -> bool:
        """Return whether the prompt contains the probe as text, and not within a list of parts printed as a whole."""
        try:
            text = self.tokenizer.apply_chat_template([*messages], chat_template=self.text, tokenize=False)
        except Exception:  # a template may raise anything
            return False
        return PROBE in text and BESIDE not in text

    def prepared(self, messages: Messages, tools: Sequence[dict] | None) -> tuple[Messages, Sequence[dict] | None]:
        """Return messages and tools as the template reads them."""
        called = any(one["role"] == "tool" or "tool_calls" in one for one in messages)
        if (tools and TAG not in self.text) or (called and "tool_calls" not in self.text):
            messages, tools = self._described(messages, tools), None
        return [one | {"content": self._content(one["content"])} for one in messages], tools

    def _content(self, content: str | list[dict]) -> str | list[dict]:
        if not self.reads_parts:
            return text_of(content)
        if self.reads_texts or isinstance(content, list):
            return content
        return [{"type": "text", "text": content}]

    def _described(self, messages: Messages, tools: Sequence[dict] | None) -> Messages:
        """Return messages of texts alone, with tools, calls and their results in the text."""
        if tools:
            messages = [{"role": "system", "content": TOOLS % "\n".join(map(dump, tools))}, *messages]
        result: Messages = []
        for message in messages:
            role, content = message["role"], text_of(message["content"])
            if role == "tool":
                role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
            if role == "system" and not self.reads_system:
                role = "user"
            for call in message.get("tool_calls", ()):
                content += f"\n{TAG}\n{dump(call['function'])}\n{END}"
            if result and result[-1]["role"] == role:  # many templates demand that roles alternate
                result[-1]["content"] += f"\n\n{content}"
            else:
                result.append({"role": role, "content": content.lstrip("\n")})
        return result


def text_of(content: str | list[dict]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def template_of(tokenizer, tools: Sequence[dict] | None) -> Template:
    """Return the template for requests with these tools: some checkpoints have several."""
    text = tokenizer.get_chat_template(tools=tools)
    return kept_template(tokenizer, text if TAG in text else tokenizer.get_chat_template())


kept_template = lru_cache(maxsize=8)(Template)


def set_template(tokenizer, file: Path | None) -> None:
    """Give the tokenizer this template in place of its own, and print one line if the server itself describes tools."""
    if file is not None:
        tokenizer.chat_template = file.expanduser().read_text(encoding="utf-8", errors="replace")
        chosen = template_of(tokenizer, None)
        if not (chosen.reads_texts or chosen.reads_parts):
            raise InvalidInput(f"{file} is no chat template: it shows no message of a user")
    if tokenizer.chat_template is not None and TAG not in str(tokenizer.chat_template):
        print(f"tools=as text (the chat template knows no {TAG}: --chat-template gives another one)", file=sys.stderr)
