"""Build the book: prepare its pages, then let Sphinx make the site. `python3 course.py book` runs it."""

import argparse
import io
import os
import re
import shutil
import sys
import tempfile
import time
import webbrowser
from importlib.util import find_spec
from pathlib import Path

from common.errors import InvalidInput
from common.setup.environment import install
from common.stages import ROOT
from common.terminal import StatusLine, note, run_to_end

REQUIREMENTS = ROOT / "requirements-book.txt"
MADE_BY_SPHINX = ".buildinfo"
COLOUR = re.compile(r"\x1b\[[\d;]*[mK]")
SETTINGS = {
    "project": "An inference server in eight steps",
    "extensions": ["myst_parser"],
    "myst_heading_anchors": 4,
    "myst_enable_extensions": ["colon_fence"],
    "html_theme": "furo",
    "html_title": "An inference server in eight steps",
    "html_static_path": [str(Path(__file__).parent / "assets")],
    "html_css_files": ["book.css"],
    "html_js_files": ["book.js"],
    "html_show_copyright": False,
    "html_show_sphinx": False,
    "html_copy_source": False,
    "suppress_warnings": ["toc.not_included", "misc.highlighting_failure"],  # pages of sources; plain text as Python
}


class Progress(io.TextIOBase):
    """What Sphinx reports, on one line that is written over."""

    def __init__(self, line: StatusLine):
        self.line, self.started = line, time.monotonic()

    def write(self, text: str) -> int:
        if said := COLOUR.sub("", text).strip():
            self.line.say(time.monotonic() - self.started, f"making {said}")
        return len(text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "course.py book",
        description="Make a website of the course: README, lessons with their diffs side by side and their recordings, "
        "glossary, sources, workshop. It needs no server and no network: open index.html in a browser.",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "book", metavar="DIR", help="default: book, in the course")
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    args = parser.parse_args(arguments)
    out = args.out.resolve()
    if out.exists() and not (out.is_dir() and ((out / MADE_BY_SPHINX).exists() or not any(out.iterdir()))):
        raise InvalidInput(f"{args.out} exists and holds no book: give --out another folder, which will be replaced.")
    need_generator()
    with tempfile.TemporaryDirectory() as temporary:
        warnings = build(Path(temporary))
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(Path(temporary) / "site", out)
    if warnings:
        note(warnings)
    print(f"{out / 'index.html'}: {len([*out.rglob('*.html')])} pages. Open it in a browser; it needs no network.")
    if args.open:
        webbrowser.open((out / "index.html").as_uri())
    return int(bool(warnings))


def need_generator() -> None:
    """Install Sphinx into .venv if it is missing. With COURSE_NO_VENV=1, raise InvalidInput that says how to."""
    if find_spec("furo") and find_spec("myst_parser"):
        return
    if os.environ.get("COURSE_NO_VENV") == "1":
        raise InvalidInput(f"`book` needs Sphinx: {sys.executable} -m pip install -r {REQUIREMENTS}, then try again.")
    note("Installing requirements-book.txt into .venv (a few seconds, once).")
    install(ROOT / ".venv", "-r", str(REQUIREMENTS))


def build(folder: Path) -> str:
    """Make the site in folder / "site", and return Sphinx's warnings: links that lead nowhere, for example."""
    from sphinx.application import Sphinx  # which may have been installed just now
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    from .pages import Pages

    warnings, copied = io.StringIO(), folder / "copied"
    with StatusLine() as line, patch_docutils(), docutils_namespace():
        progress = Progress(line)
        Pages(folder / "pages", copied, progress.write).write()
        settings = SETTINGS | {"html_extra_path": [str(copied)]}
        paths = [folder / name for name in ("site", "doctrees")]
        app = Sphinx(folder / "pages", None, *paths, "html", settings, status=progress, warning=warnings)
        app.build()
    return COLOUR.sub("", warnings.getvalue()).replace(f"{folder / 'pages'}{os.sep}", "").strip()


if __name__ == "__main__":
    run_to_end(main)
