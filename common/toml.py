"""Read TOML: by `tomllib`, which Python has from 3.11 on, or by the package that it was made from."""

from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a file holds."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
