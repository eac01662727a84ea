"""What Sphinx reads: the course, with a page for each diff and each folder that has none."""

import re
import shutil
from itertools import pairwise
from pathlib import Path

from common.stages import ROOT, stage_folders

from .walk import diff_page

FOLDERS = ["beyond", "common", "workshop", "tests", "tools", ".github", ".vscode"]  # beside the stages
NOT_SHOWN = shutil.ignore_patterns("__pycache__", "*.safetensors", "*.pyc")
CONTENTS = Path(__file__).with_name("contents.txt")  # the table of contents, for the end of the README
LINK = re.compile(r"(?<=\]\()(?!\w+:)[^()\s#]+(?=\))")
RECORDING = re.compile(  # a picture that links a recording, or a picture and a paragraph with the link
    r"^(?:\[!\[([^\]]+)\]\([^)]+\)\]|!\[([^\]]+)\]\([^)]+watch\.png\)\n\n\[[^\]]+\])\(([^)]*watch\.html)\).*$",
    re.MULTILINE,
)
PLAYER = """<figure class="recording"><iframe src="{at}" title="{said}" loading="lazy"></iframe>
<figcaption>{said}. <a href="{at}">In a window of its own</a></figcaption></figure>"""


def write_course(root: Path) -> None:
    """Copy the course to a folder, with additional pages, and with links and recordings as a website has them."""
    root.mkdir()
    for path in ROOT.iterdir():
        if path in stage_folders() or path.name in FOLDERS:
            shutil.copytree(path, root / path.name, ignore=NOT_SHOWN)
        elif path.is_file():
            shutil.copy(path, root)
    for before, after in pairwise(stage_folders()):
        (root / after.name / "diff.md").write_text(diff_page(before, after), encoding="utf-8")
    for folder in [path for path in root.rglob("*") if path.is_dir() and not (path / "README.md").exists()]:
        links = [f"- [{path.name}]({path.name})" for path in sorted(folder.iterdir())]
        (folder / "contents.md").write_text("\n".join([f"# {folder.relative_to(root)}\n", *links]), encoding="utf-8")
    for page in root.rglob("*.md"):
        page.write_text(prepared(page), encoding="utf-8")
    with (root / "README.md").open("a", encoding="utf-8") as readme:
        readme.write(CONTENTS.read_text(encoding="utf-8"))


def prepared(page: Path) -> str:
    """Return a page with its recordings to play, with links to the pages of folders, and in a lesson to its diff."""

    def play(found: re.Match) -> str:
        return PLAYER.format(said=(found[1] or found[2]).removesuffix(": a recording"), at=found[3])

    def lead(found: re.Match) -> str:
        folder = page.parent / found[0]
        if not folder.is_dir():
            return found[0]
        return f"{found[0]}/{'README' if (folder / 'README.md').exists() else 'contents'}.md"

    command = f"`python3 course.py diff {page.parent.name[:2]}`"
    text = page.read_text(encoding="utf-8").replace(command, f"[{command}](diff.md)", 1)
    return LINK.sub(lead, RECORDING.sub(play, text))
