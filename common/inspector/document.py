"""The page as one HTML document that loads nothing: styles, modules and, in a recording, its updates are inside it.

A server sends the same document that a recording is, so there is one way in which the page can work. Modules import
each other by bare names such as "inspector/store"; an import map says where each is, as a data: URL. The Content
Security Policy lets the document load nothing and send nothing, except to the servers that it watches.
"""

import base64
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

PAGE = Path(__file__).with_name("page")
PLAIN = " !\"$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # stand for themselves in a data: URL, beside letters and digits
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; connect-src 'self' {connect}"
)


def document(boot: dict[str, Any], connect: Sequence[str] = ()) -> str:
    """Return the page as HTML. boot: what main.js begins with, as JSON. connect: other origins that it may ask."""
    parts = {
        "POLICY": POLICY.format(connect=" ".join(connect)).strip(),
        "STYLE": (PAGE / "style.css").read_text(encoding="utf-8"),
        "IMPORTS": in_script({"imports": dict(map(module, sorted(PAGE.glob("*.js"))))}),
        "BOOT": in_script(boot),
    }
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        html = html.replace(f"%{name}%", text)
    return html


def module(path: Path) -> tuple[str, str]:
    """Return a module's name and URL; its last line is the name by which a browser's debugger shows it."""
    name = f"inspector/{path.stem}"
    code = path.read_text(encoding="utf-8") + f"\n//# sourceURL={name}.js\n"
    return name, "data:text/javascript," + quote(code, safe=PLAIN)


def in_script(value: Any) -> str:
    """JSON that can stand in a <script> element: no text in it can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def write_recording(path: Path, streams: list[list[str]]) -> None:
    """Write a file that replays what one engine told, or two side by side. Each stream is JSON, line by line."""
    whole = ",".join(f"[{','.join(lines)}]" for lines in streams)
    packed = base64.b64encode(zlib.compress(f"[{whole}]".encode(), 9)).decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document({"recording": packed}), encoding="utf-8")


def read_recording(path: Path) -> list[list[str]]:
    """Return the streams of a file that `write_recording` wrote: for each engine its hello and its updates, as JSON."""
    html = path.read_text(encoding="utf-8")
    boot = json.loads(re.search(r'<script id="boot" type="application/json">(.*?)</script>', html, re.DOTALL)[1])
    streams = json.loads(zlib.decompress(base64.b64decode(boot["recording"])))
    return [[json.dumps(line) for line in stream] for stream in streams]
