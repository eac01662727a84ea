"""The handshake of a page transfer: the messages before and after the bytes of the pages.

    receiver                                      sender
                                              <-  nonce
    nonce, pages to skip, pages, key, proof   ->
                                              <-  answer, proof
                                              <-  the bytes of the pages
                                              <-  proof, if the offer still stood after the last byte

A proof is an HMAC-SHA256 with the ticket's secret over a label and all messages before it, without the bytes of the
pages. So each side knows that the other one holds the secret, which never travels, and that no earlier connection is
replayed. The pages are neither encrypted nor protected from an attacker who can change packets: between machines
without a common private network, use a tunnel.
"""

import hmac
import json
import secrets
from struct import Struct
from typing import NamedTuple

from .interruptible_socket import InterruptibleSocket

NONCE_BYTES, PROOF_BYTES = 16, 32
MAX_KEY_BYTES, MAX_ANSWER_BYTES = 1024, 1 << 16
REQUEST = Struct(f"!{NONCE_BYTES}sIIH")  # nonce, pages to skip, pages, bytes of the key; then the key
LENGTH = Struct("!I")  # bytes of the answer; then the answer


class Ticket(NamedTuple):
    """The address and the secret with which pages can be fetched. Only the receiver may see it."""

    host: str
    port: int
    secret: bytes
    key: str


class Handshake:
    """One side of the handshake. Methods raise OSError if the connection fails or the other side's proof is wrong."""

    def __init__(self, connection: InterruptibleSocket, secret: bytes):
        self.connection, self.secret = connection, secret
        self.transcript = b""

    def ask(self, key: str, skip: int, count: int) -> dict:
        """Receiver: ask for `count` pages after the first `skip`; return the sender's answer."""
        self.transcript += self.connection.read(NONCE_BYTES)
        name = key.encode()
        request = REQUEST.pack(secrets.token_bytes(NONCE_BYTES), skip, count, len(name)) + name
        self.transcript += request
        self.connection.write([request, self._proof("request")])
        header = self.connection.read(LENGTH.size)
        (length,) = LENGTH.unpack(header)
        if length > MAX_ANSWER_BYTES:
            raise ConnectionError(f"an answer of {length} bytes was announced; the limit is {MAX_ANSWER_BYTES}")
        answer = self.connection.read(length)
        self.transcript += header + answer
        self._verify("answer")
        return json.loads(answer)

    def expect_completion(self) -> None:
        """Receiver, after the last byte: return if the sender proves that the offer still stood."""
        self._verify("complete")

    def hear(self) -> tuple[str, int, int]:
        """Sender: challenge the receiver; return the key, the pages to skip, and the number of pages to send."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.connection.write([nonce])
        request = self.connection.read(REQUEST.size)
        _, skip, count, length = REQUEST.unpack(request)
        if length > MAX_KEY_BYTES:
            raise ConnectionError(f"a key of {length} bytes was announced; the limit is {MAX_KEY_BYTES}")
        name = self.connection.read(length)
        self.transcript += nonce + request + name
        self._verify("request")
        return name.decode(), skip, count

    def reply(self, answer: dict) -> None:
        """Sender: answer the request that `hear` has returned."""
        text = json.dumps(answer).encode()
        message = LENGTH.pack(len(text)) + text
        self.transcript += message
        self.connection.write([message, self._proof("answer")])

    def complete(self) -> None:
        """Sender, after the last byte: prove that the offer still stood."""
        self.connection.write([self._proof("complete")])

    def _proof(self, label: str) -> bytes:
        return hmac.digest(self.secret, label.encode() + b"\0" + self.transcript, "sha256")

    def _verify(self, label: str) -> None:
        if not hmac.compare_digest(self.connection.read(PROOF_BYTES), self._proof(label)):
            raise ConnectionError(f"the other side does not hold the ticket's secret (its proof of {label!r} is wrong)")
