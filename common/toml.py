"""Read TOML: by `tomllib`, which Python has from 3.11 on, or by the package that it was made from.

`start`, `solve` and `bug` run before anything is installed: then pip's copy of that package does it.
"""

from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:
    try:
        import tomli as tomllib
    except ImportError:
        from pip._vendor import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a file holds."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
