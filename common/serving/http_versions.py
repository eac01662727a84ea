"""HTTP/1.0 beside HTTP/1.1: in 1.0, streamed answers have no chunks, and end with the connection."""

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_BYTES = 1 << 16  # bytes of a first line that are kept


class Protocol(HttpToolsProtocol):
    """Serve a connection as uvicorn's fast parser does, or with h11 if its first request is of HTTP/1.0.

    The fast one sends streams in chunks to every client; `ab`, and nginx by default, would print the chunks' frames.
    """

    _begun = b""  # the first line so far; None once it is complete

    def data_received(self, data: bytes) -> None:
        if self._begun is None:
            return super().data_received(data)
        self._begun = (self._begun + data).lstrip()  # some clients send an empty line first
        line, end, _ = self._begun.partition(b"\n")
        if not end and len(line) < MAX_BYTES:
            return None
        data, self._begun = self._begun, None
        if not line.rstrip().endswith(b"HTTP/1.0"):
            return super().data_received(data)
        self.connections.discard(self)
        other = H11Protocol(self.config, self.server_state, self.app_state)
        other.connection_made(self.transport)
        self.transport.set_protocol(other)
        return other.data_received(data)
