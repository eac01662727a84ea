"""Draws results beside each other: one HTML page that loads nothing, and PNGs.

    python3 course.py compare                          this machine's results beside the committed ones
    python3 course.py compare anna.json ben.json ...   files of a class; a folder stands for all that it holds

Ratios come first, absolute figures second. Results share an axis only if device, model and size set are the same. With
four machines or more the page has the median of the class, and says what differs about the odd ones out. A file that
cannot be compared is left out with a sentence; an earlier comparison is kept in a folder of its own.
"""

import argparse
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from common.inspector.document import document
from common.terminal import note, run_to_end

from ..documents import write_atomically
from .figures import compose
from .pictures import KINDS, draw_group
from .sources import HERE, collect

PAGE = Path(__file__).resolve().parent / "page"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write page and pictures; return 1, with sentences, if there is nothing to compare."""
    parser = argparse.ArgumentParser(
        "course.py compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="results files of `bench`, or folders")
    parser.add_argument("--out", type=Path, default=HERE / "compare", metavar="DIR", help="default: results/compare")
    args = parser.parse_args(arguments)
    found, refused = collect(args.files)
    for sentence in refused:
        note(f"left out: {sentence}")
    if not found:
        return 1
    page = compose(found, refused)
    for sentence in page["drifted"]:
        note(f"drift: {sentence}")
    try:
        if earlier := keep_earlier(args.out):
            note(f"the comparison that was there is kept in {earlier}")
        written = write(page, args.out)
    except OSError as error:
        note(f"error: {error}")
        return 1
    print(*written, sep="\n")
    return 0


def keep_earlier(out: Path) -> Path | None:
    """Move the page and the pictures of an earlier comparison to a folder beside the new ones; return this folder."""
    if not (out / "index.html").exists():
        return None
    folder = next(folder for number in count(1) if not (folder := out / f"earlier-{number}").exists())
    folder.mkdir()
    for path in [out / "index.html", *(png for kind in KINDS for png in out.glob(f"*-{kind}.png"))]:
        path.rename(folder / path.name)
    return folder


def write(page: dict, out: Path) -> list[Path]:
    html = out / "index.html"
    write_atomically(html, document(page, page=PAGE))
    return [html, *(png for group in page["groups"] for png in draw_group(group, out))]


if __name__ == "__main__":
    run_to_end(main)
