"""Make a website of the course: README, lessons with their diffs side by side and their recordings, glossary, sources,
workshop. It needs no server and no network: open its index.html in a browser. (Sphinx makes it of prepared pages.)
"""

import html
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.errors import InvalidInput
from common.setup.environment import install
from common.stages import ROOT
from common.terminal import note, parser_of, run_to_end

from .pages import Pages

REQUIREMENTS = ROOT / "requirements-book.txt"
SETTINGS = {
    "extensions": ["myst_parser"],
    "myst_enable_extensions": ["colon_fence"],
    "myst_heading_anchors": 4,
    "myst_url_schemes": {"http": None, "https": None, "mailto": None, "code": "{{path}}.html"},  # code_pages
    "html_theme": "furo",
    "html_title": "An inference server in eight stages",
    "html_static_path": [str(Path(__file__).parent / "assets")],
    "html_css_files": ["book.css"],
    "html_js_files": ["book.js"],
    "html_copy_source": False,
    "suppress_warnings": ["misc.highlighting_failure"],  # Some blocks hold text that is not code.
}


def main(arguments: list[str] | None = None) -> int:
    out = (parser_of("course.py book", __doc__).parse_args(arguments).out or ROOT / "book").resolve()
    if out.exists() and not (out / ".buildinfo").exists():  # Sphinx leaves this file.
        raise InvalidInput(f"{out} exists and is no book: name a folder with --out that may be made, or made again.")
    need_generator()
    with tempfile.TemporaryDirectory() as temporary:
        warnings = build(Path(temporary))
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(Path(temporary) / "site", out)
    print(f"{out / 'index.html'}: {len([*out.rglob('*.html')])} pages. Open it in a browser; it needs no network.")
    if warnings:
        note(warnings)
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
    from sphinx.application import Sphinx  # It may have been installed just now.
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    pages, copied, site, kept = (folder / name for name in ("pages", "copied", "site", "kept"))
    prepared, warnings = Pages(pages, copied), io.StringIO()
    prepared.write()
    settings = SETTINGS | {"html_extra_path": [str(copied)]}
    with patch_docutils(), docutils_namespace():
        app = Sphinx(pages, None, site, kept, "html", settings, status=sys.stderr, warning=warnings)
        app.connect("html-collect-pages", lambda app: code_pages(app, sorted(prepared.code)))
        app.build()
    return re.sub(r"\x1b\[[\d;]*[mK]", "", warnings.getvalue()).strip()  # Sphinx colours them


def code_pages(app, files: Iterable[Path]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield for Sphinx each page that shows a file: its name, its context, its template.

    Those of a folder share a table of contents, which Sphinx would make for each, longer than all the rest takes.
    """
    from pygments.lexers import find_lexer_class_for_filename
    from sphinx.environment.adapters.toctree import TocTree

    @cache
    def contents(folder: Path, **options) -> str:
        tree = TocTree(app.env).get_toctree_for((folder / "any").as_posix(), app.builder, **options)
        return app.builder.render_partial(tree)["fragment"]

    for path in files:
        name, lexer = path.relative_to(ROOT), find_lexer_class_for_filename(path.name)
        language = lexer.aliases[0] if lexer else "text"
        code = app.builder.highlighter.highlight_block(path.read_text(encoding="utf-8"), language, linenos="inline")
        title = name.as_posix()
        body = f'<h1>{html.escape(title)}</h1><div class="highlight-{language}">{code}</div>'
        yield title, {"title": title, "body": body, "toctree": partial(contents, name.parent)}, "page.html"


if __name__ == "__main__":
    run_to_end(main)
