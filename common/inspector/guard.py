"""Which page may watch and control: the server's own, and no other page that is open in the same browser.

A browser sends requests to 127.0.0.1 for any web page. Two checks keep others out. What changes something must name the
page's own origin. And the host's name must be this server's: a foreign name that has been made to lead here (DNS
rebinding) would make a foreign page look like our own.
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from fastapi import HTTPException, Request


class Guard:
    """names: of this server, beside localhost and addresses. origins: of pages that may control it beside its own."""

    def __init__(self, names: Collection[str], origins: Collection[str] = ()):
        self.names, self.origins = {"localhost", *names}, set(origins)

    async def check(self, http: Request) -> None:
        """Raise HTTPException 403 for a host that is not ours, or a change that another page asks for."""
        host = http.headers.get("host", "")
        name = urlsplit(f"//{host}").hostname or ""
        if name not in self.names and not is_address(name):
            raise HTTPException(403, "this is not the name of this server: use the address that it printed")
        if http.method == "GET":
            return
        origin = http.headers.get("origin", "")
        if origin not in self.origins and origin != f"{http.url.scheme}://{host}":
            raise HTTPException(403, "only the server's own page may control it")


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
