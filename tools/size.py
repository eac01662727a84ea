"""Print how much there is to read: the files, lines and tokens of all Python code in git, by folder.

    python3 tools/size.py
    python3 tools/size.py --check    exits with 1 above the limits

A token is a name, an operator, a number or a string. Comments and docstrings count as lines alone. Longer lines save
lines but no tokens, so tokens are the measure. The idea is tinygrad's `sz.py`.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

LIMITS = {"lines": 52_900, "tokens": 414_500}  # lower them whenever the code has shrunk
CODE = {tokenize.OP, tokenize.NAME, tokenize.NUMBER, tokenize.STRING}
ROOT = Path(__file__).resolve().parents[1]


def count(text: str) -> dict[str, int]:
    """Return the numbers of lines, of lines with code, and of tokens of a module."""
    nodes = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    first = [node.body[0] for node in nodes if ast.get_docstring(node, clean=False) is not None]
    docstrings = {(node.lineno, node.col_offset) for node in first}
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type in CODE]
    tokens = [one for one in tokens if one.start not in docstrings]
    code = {line for one in tokens for line in range(one.start[0], one.end[0] + 1)}
    return {"files": 1, "lines": text.count("\n"), "code": len(code), "tokens": len(tokens)}


def folder_of(path: Path) -> str:
    """Return the folder that a file is counted in: the stages are one, and those of common and tests are apart."""
    parts = path.parts[:-1]
    if parts and parts[0][0].isdigit():
        return "stages"
    return "/".join(parts[:2] if parts[:1] in [("common",), ("tests",)] else parts[:1]) or "."


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    table: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("files", "lines", "code", "tokens"), 0))
    for path in map(Path, filter(None, listed.stdout.split("\0"))):
        if (ROOT / path).exists():
            for what, number in count((ROOT / path).read_text(encoding="utf-8")).items():
                table[folder_of(path)][what] += number
                table["all"][what] += number
    print(f"{'folder':24}  files   lines    code   tokens  tokens a line of code")
    for folder, of in sorted(table.items(), key=lambda row: (row[0] == "all", row[0])):
        density = of["tokens"] / max(1, of["code"])
        print(f"{folder:24} {of['files']:6,} {of['lines']:7,} {of['code']:7,} {of['tokens']:8,} {density:6.1f}")
    over = [f"{table['all'][what]:,} {what}, and the limit is {limit:,}" for what, limit in LIMITS.items()
            if table["all"][what] > limit]  # fmt: skip
    print("; ".join(over) or "within the limits")
    return bool(over) and "--check" in sys.argv


if __name__ == "__main__":
    sys.exit(main())
