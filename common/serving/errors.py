"""Why a server does not take a request that is as it should be."""


class QueueFull(Exception):
    """As many requests are open as the server admits: try again later."""


class EngineDead(Exception):
    """The engine failed, or is shutting down, and takes no more requests."""
