"""The reasons for which a server refuses a request, and the log line for its operator."""

import logging

logger = logging.getLogger("uvicorn.error")  # uvicorn configures it from --log-level


def log_refusal(http, status: int, message: str) -> None:
    """Log one line with the reason: a warning if the server is the cause (429 and 5xx), otherwise information."""
    level = logging.WARNING if status == 429 or status >= 500 else logging.INFO
    logger.log(level, "%s %s: %d, %s", http.method, http.url.path, status, " ".join(message.split()))


class QueueFull(Exception):
    """The server has as many open requests as it admits: try again later."""


class EngineDead(Exception):
    """The engine has failed or is shutting down, and refuses new requests."""
