"""The page as one HTML document that loads nothing: styles and modules are inside it.

A server sends the same document that a recording is, so there is one way in which the page can work. Modules import
each other by bare names such as "inspector/store"; an import map says where each is, as a data: URL. The Content
Security Policy allows these scripts (they carry a nonce), no other, and no HTML made from text (trusted types).
"""

import json
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

PAGE = Path(__file__).resolve().parent / "page"
PLAIN = " !\"$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # stand for themselves in a data: URL, beside letters and digits


def document(boot: dict[str, Any], connect: Sequence[str] = (), page: Path = PAGE) -> str:
    """Return the page as HTML. boot: what main.js begins with, as JSON. connect: other origins that it may ask.

    page: the folder of index.html, style.css and the modules; the folder around it gives them their name.
    """
    nonce = secrets.token_urlsafe(16)
    parts = {
        "NONCE": nonce,
        "POLICY": policy(nonce, connect),
        "STYLE": (page / "style.css").read_text(encoding="utf-8"),
        "IMPORTS": in_script({"imports": {name_of(path): module(path) for path in modules(page)}}),
        "BOOT": in_script(boot),
    }
    html = (page / "index.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        html = html.replace(f"%{name}%", text)
    return html


def modules(page: Path = PAGE) -> list[Path]:
    return sorted(page.glob("*.js"))


def name_of(path: Path) -> str:
    """Return what other modules import it by, such as "inspector/store"."""
    return f"{path.parent.parent.name}/{path.stem}"


def boot_of(html: str) -> dict[str, Any]:
    """Return what a document's main.js begins with."""
    return json.loads(re.search(r'<script id="boot" type="application/json">(.*?)</script>', html, re.DOTALL)[1])


def module(path: Path) -> str:
    """Return a module as a URL; the last line is the name by which a browser's debugger shows it."""
    code = path.read_text(encoding="utf-8") + f"\n//# sourceURL={name_of(path)}.js\n"
    return "data:text/javascript," + quote(code, safe=PLAIN)


def policy(nonce: str, connect: Sequence[str]) -> str:
    allowed = {
        "default-src": "'none'",
        "script-src": f"'nonce-{nonce}'",
        "style-src": f"'nonce-{nonce}'",
        "connect-src": " ".join(["'self'", *connect]),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def in_script(value: Any) -> str:
    """JSON that can stand in a <script> element: no text in it can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
