"""Why a server does not take a request, and the line by which its operator learns of it."""

import logging

logger = logging.getLogger("uvicorn.error")  # uvicorn sets it up, by --log-level


def log_refusal(http, status: int, message: str) -> None:
    """One line with the reason: a warning if the server is to blame, for an overload too; else for information."""
    level = logging.WARNING if status == 429 or status >= 500 else logging.INFO
    logger.log(level, "%s %s: %d, %s", http.method, http.url.path, status, " ".join(message.split()))


class QueueFull(Exception):
    """As many requests are open as the server admits: try again later."""


class EngineDead(Exception):
    """The engine failed, or is shutting down, and takes no more requests."""
