"""Unified diffs of the course's files: planted faults, and the solutions of exercises.

Where a hunk was in its file is not read, since lines above it may come and go: its text must be there exactly once.
"""

import re


def read_hunks(diff: str) -> list[tuple[str, str]]:
    """Return old and new text of each hunk in the diff of one file."""
    return [
        tuple("".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in f" {sign}") for sign in "-+")
        for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]
    ]


def patched(text: str, hunks: list[tuple[str, str]], name: str) -> str:
    """Return the text with the new texts. Raise ValueError, which says `name`, unless each old one is there once."""
    for old, new in hunks:
        if (count := text.count(old)) != 1:
            raise ValueError(f"{name} has the text to replace {count} times, and not once")
        text = text.replace(old, new)
    return text
