"""What tests share. Cases that are data, such as bodies and configurations, lie beside the modules as JSON."""

import json
from pathlib import Path
from typing import Any


def helper_file(name: str) -> Any:
    """Return what a JSON file of this folder holds."""
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
