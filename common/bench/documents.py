"""How results are written, and read: numbers without their noise, and files that are never half there."""

import json
import os
from pathlib import Path
from typing import Any


def rounded(value: Any) -> Any:
    """Round floats to six significant digits, anywhere in a JSON value: more is noise."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write text as UTF-8, or bytes: a reader sees the old content or the new, also after an interruption."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(unfinished, path)


def write_json(path: Path, document: Any) -> None:
    """Write the document, rounded."""
    write_atomically(path, json.dumps(rounded(document), indent=1) + "\n")


def parts(document: dict[str, Any]) -> tuple[dict, dict, dict]:
    """Return the sizes of a benchmark's document, the figures of each side, and those that combine sides."""
    return document["sizes"], document["sides"], document["figures"]


def medians(document: dict[str, Any]) -> tuple[dict, dict, dict]:
    """Return the parts of a document with the median in place of each figure; None of what is not made of numbers."""
    sizes, sides, figures = parts(document)
    return sizes, {side: middle(found) for side, found in sides.items()}, middle(figures)


def middle(figures: dict[str, dict]) -> dict[str, Any]:
    return {name: figure.get("median") for name, figure in figures.items()}


def read_json(path: Path) -> Any:
    """Return a document, or None where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
