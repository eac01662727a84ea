"""What the page says about each stage, and the prompts that it offers: read from lessons.toml."""

from pathlib import Path
from typing import Any

from common.checkpoints.corpus import SYSTEM_PROMPTS
from common.toml import read_toml

LONG = (
    "The weather is mild. A cat sleeps on the wall. A boat passes the harbour. " * 40 + "What is the capital of Italy?"
)
TEXTS = {"{long}": LONG, "{desk}": SYSTEM_PROMPTS[8]}  # rules of a help desk, some 60 tokens long
PRESET = {"max_tokens": 128, "count": 1, "chat": True, "system": "", "temperature": 0.0}
LESSON = {"look": "", "question": "", "system": "", "options": {}}


def filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Return what the file says, with the long texts put into it."""
    return {name: TEXTS.get(value, value) if isinstance(value, str) else value for name, value in fields.items()}


FILE = read_toml(Path(__file__).with_suffix(".toml"))
PRESETS = {name: PRESET | filled(fields) for name, fields in FILE["presets"].items()}


def lesson_of(stage_name: str) -> dict[str, Any]:
    """Return the lesson of a stage's folder, or a plain one for a folder that is not part of the course."""
    plain = {"title": stage_name, "presets": ["fact", "sum", "story", "four", "long"]}
    lesson = LESSON | filled(FILE["lessons"].get(stage_name[:2], plain))
    return lesson | {"presets": [PRESETS[name] for name in lesson["presets"]]}
