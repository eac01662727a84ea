"""Take the network away from a process that runs a learner's code, as far as the system allows that without root."""

import ctypes
import socket
import struct
import sys
from contextlib import suppress

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # namespaces of Linux
SET_FLAGS, UP = 0x8914, 1  # a command of ioctl, and a flag of a network interface
LOCAL = (None, "", "127.0.0.1", "localhost", "::1")


def go_offline() -> None:
    """Move this process, before it has threads, to a network with a loopback alone, where Linux lets users do so.

    Also refuse connections from Python, on any system: that stops a download, but no determined program.
    """
    if sys.platform == "linux" and ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK) == 0:
        import fcntl

        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))  # Stage 03 serves on loopback.
    sys.addaudithook(refuse)


def refuse(event: str, arguments: tuple) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
        address = arguments if event == "socket.getaddrinfo" else arguments[1]
        if isinstance(address, tuple) and address[0] not in LOCAL:
            raise PermissionError(f"there is no network while a stage is graded, and it asks for {address[0]}")
