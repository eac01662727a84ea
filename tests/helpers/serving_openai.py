"""Servers of several stages with everything that others use, in this process, and OpenAI's own client for them."""

import argparse
from contextlib import contextmanager
from functools import partial

import httpx
import openai

import common.serving.server
from common.serving.options import add_server_arguments
from common.stages import load_engine
from tests.helpers import serving_stage_03
from tests.helpers.serving_stage_03 import run_server, server_module, wait_until

PROMPT = "Once upon a time"
ENDLESS = {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


@contextmanager
def openai_server(stage: str, loaded, *options: str, engine=None):
    """A server, as `main.py --serve` starts it. With `--api-process` the other process is a thread of this one."""
    parser = argparse.ArgumentParser()
    add_server_arguments(parser)
    args = parser.parse_args(options)
    args.host, args.port, args.trace = "127.0.0.1", 0, None
    module = server_module if stage == "03" else common.serving.server
    drafts = {"num_draft_tokens": 2} if stage >= "07" else {}  # given, so that an engine measures nothing
    engine = engine or load_engine(stage)(loaded, **drafts)
    with run_server(partial(module.build_server, args=args), engine, Service, args.api_process) as service:
        yield service


class Service(serving_stage_03.Service):
    def __init__(self, url: str, server):
        super().__init__(url, server)
        self.name = self.thread.engine.name
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)

    def post(self, path: str = "/v1/completions", **body) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=120)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=60)

    def said(self, messages, **fields) -> tuple[str | None, list[str], str]:
        """Return content, calls and finish reason of a chat, streamed the same as whole; no delta is empty."""
        body = {"model": self.name, "messages": messages, "extra_body": {"max_tokens": 400} | fields}
        with self.client.chat.completions.stream(**body) as stream:
            *chunks, _ = [event.chunk.choices[0] for event in stream if event.type == "chunk"]
        assert all(chunk.delta.content or chunk.delta.tool_calls for chunk in chunks)
        results = []
        for answer in (self.client.chat.completions.create(**body), stream.current_completion_snapshot):
            [choice] = answer.choices
            calls = [f"{call.function.name}({call.function.arguments})" for call in choice.message.tool_calls or ()]
            results.append((choice.message.content, calls, choice.finish_reason))
        assert results[0] == results[1]
        return results[0]

    def idle(self) -> bool:
        """Return whether the engine holds nothing of any request."""
        stats = self.thread.stats
        return stats["unfinished"] == 0 and stats["kv_tokens_used"] == 0

    def hang_up_after(self, body: dict) -> None:
        """Ask for a completion, and close the connection when the engine has taken all of its requests."""
        wait_until(self.idle)  # an answer may arrive before the figures of the step that ended it
        with self.ask("/v1/completions", **body):
            wait_until(lambda: self.thread.stats["unfinished"] == body.get("n", 1))
