"""How results are written: numbers without their noise, and files that are never half there."""

import json
import os
from pathlib import Path
from typing import Any

from common.errors import InvalidInput


def rounded(value: Any) -> Any:
    """Round floats to six significant digits, anywhere in a JSON value: more is noise."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def expect_writable(path: Path) -> None:
    """Raise InvalidInput if no file can be written at `path`: it would be a pity once minutes have been measured."""
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder: name a file in it")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InvalidInput(f"{folder} is no folder that can be written to: name another one")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write text as UTF-8, or bytes: a reader sees the old content or the new, also after an interruption."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(unfinished, path)


def write_json(path: Path | None, document: Any) -> str:
    """Write the document, rounded, unless the path is None; return it as one line."""
    document = rounded(document)
    if path is not None:
        write_atomically(path, json.dumps(document, indent=1) + "\n")
    return json.dumps(document, separators=(",", ":"))


def read_json(path: Path) -> Any:
    """Return a document, or None where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
