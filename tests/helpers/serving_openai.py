"""Servers of several stages with everything that others use, in this process, and OpenAI's own client for them."""

import argparse
import json
import socket
from contextlib import contextmanager

import openai

from common.serving.background import running
from common.serving.options import add_server_arguments
from common.stages import load_engine, load_stage_module
from tests.helpers.serving_stage_03 import SteppingEngine, wait_until

STAGES = ["03", "06", "08"]  # the one that builds a server, a later one, and a router with workers


def server_arguments(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_server_arguments(parser)
    args = parser.parse_args(options)
    args.host, args.port, args.trace = "127.0.0.1", 0, None
    return args


@contextmanager
def openai_server(stage: str, loaded, *options: str, engine=None):
    """A running server, as `python 0N_*/main.py --serve` starts it."""
    module = load_stage_module("03", "server") if stage == "03" else __import__("common.serving.server", fromlist=["x"])
    server = module.build_server(engine or load_engine(stage)(loaded), server_arguments(*options))
    with running(server) as url:
        try:
            yield Service(url, server)
        except BaseException:
            if isinstance(engine, SteppingEngine):
                engine.allow()  # a test that has failed must not wait for its open requests as well
            raise


class Service:
    def __init__(self, url: str, server):
        self.url, self.thread = url, server.engine_thread
        self.app = server.config.app
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)

    @property
    def name(self) -> str:
        return self.thread.engine.model_name

    def idle(self) -> bool:
        """Return whether the engine holds nothing of any request."""
        stats = self.thread.stats
        return stats["unfinished"] == 0 and stats["kv_tokens_used"] == 0

    def hang_up_after(self, body: dict) -> None:
        """Asks for a completion, and closes the connection when the engine has taken all of its requests."""
        host, port = self.url.removeprefix("http://").split(":")
        data = json.dumps(body).encode()
        with socket.create_connection((host, int(port))) as client:
            head = "POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
            wait_until(lambda: self.thread.stats["unfinished"] == body.get("n", 1))
