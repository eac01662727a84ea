"""Chunks of several tokens, for streams that need not show each token by itself (`--stream-interval`).

A chunk costs server and client together some 200 microseconds of Python, whatever it carries. A step of a small model
or a fast GPU takes no longer than that for each of its requests, so that chunks of one token cost as much as computing
them. vLLM and SGLang have the same option.
"""

from common.engine import Hook
from common.request import Request


class Intervals(Hook):
    """Tells clients of a request's first and last token, else of every `tokens` tokens if there is text.

    It is the last hook, since those behind it would not see what it leaves out.
    """

    def __init__(self, tokens: int):
        self._tokens = tokens
        self._told: dict[str, tuple[int, int]] = {}  # by request id: tokens and final characters when last reported

    def on_step(self, changed: list[Request]) -> list[Request]:
        return [request for request in changed if self._due(request)]

    def on_finish(self, request: Request) -> None:
        self._told.pop(request.request_id, None)

    def _due(self, request: Request) -> bool:
        """Return whether a chunk is due. One without text would not be sent, so it does not count."""
        if request.finished:
            return True
        tokens, characters = self._told.get(request.request_id, (-self._tokens, 0))
        if len(request.token_ids) - tokens < self._tokens or request.stable_text_length == characters:
            return False
        self._told[request.request_id] = len(request.token_ids), request.stable_text_length
        return True
