"""Make a website of the course: README, lessons with their diffs side by side and their recordings, glossary, sources,
workshop. It needs no server and no network: open its index.html in a browser. (Sphinx makes it of prepared pages.)
"""

import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from common.errors import InvalidInput
from common.setup.environment import install
from common.stages import ROOT
from common.terminal import note, parser_of, run_to_end

from .pages import write_course

REQUIREMENTS = ROOT / "requirements-book.txt"


def main(arguments: list[str] | None = None) -> int:
    out = (parser_of("course.py book", __doc__).parse_args(arguments).out or ROOT / "book").resolve()
    if out.exists() and not (out / ".buildinfo").exists():  # Sphinx leaves this file.
        raise InvalidInput(f"{out} exists and is no book: name a folder with --out that may be made, or made again.")
    need_generator()
    from sphinx.cmd.build import build_main  # It may have been installed just now.

    note("Making the book (half a minute).")
    with tempfile.TemporaryDirectory() as temporary:
        course, site, kept = (Path(temporary) / name for name in ("course", "site", "kept"))
        write_course(course)
        options = ["--quiet", "--fail-on-warning", f"--conf-dir={Path(__file__).parent}", f"--doctree-dir={kept}"]
        status = build_main([*options, str(course), str(site)])
        for path in course.glob("*/results/watch*"):  # HTML within Markdown shows these.
            shutil.copy(path, site / path.relative_to(course))
        shutil.copy(site / "README.html", site / "index.html")
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(site, out)
    print(f"{out / 'index.html'}: {len([*out.rglob('*.html')])} pages. Open it in a browser; it needs no network.")
    return status


def need_generator() -> None:
    """Install Sphinx into .venv if it is missing. With COURSE_NO_VENV=1, raise InvalidInput that says how to."""
    if find_spec("furo") and find_spec("myst_parser"):
        return
    if os.environ.get("COURSE_NO_VENV") == "1":
        raise InvalidInput(f"`book` needs Sphinx: {sys.executable} -m pip install -r {REQUIREMENTS}, then try again.")
    note("Installing requirements-book.txt into .venv (a few seconds, once).")
    install(ROOT / ".venv", "-r", str(REQUIREMENTS))


if __name__ == "__main__":
    run_to_end(main)
