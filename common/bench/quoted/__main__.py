"""Say which figures of which READMEs and questions disagree with the results, or write them there."""

import argparse
import sys
from collections.abc import Callable, Sequence

from common.stages import ROOT

from ..documents import write_atomically
from . import guesses, guides, stage_01, stage_02, stage_03, stage_04, stage_05, stage_06, stage_07, stage_08
from .passages import Once, Passage, problems, rewritten

LESSONS = [stage_01, stage_02, stage_03, stage_04, stage_05, stage_06, stage_07, stage_08]
DOCUMENTS: dict[str, Callable[[], Sequence[Passage]]] = (
    guides.DOCUMENTS
    | guesses.DOCUMENTS
    | {
        f"{folder.name}/README.md": lesson.declared
        for folder, lesson in zip(sorted(ROOT.glob("[0-9][0-9]_*")), LESSONS, strict=True)
    }
)


def main(words: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if anything disagrees, or still does after writing."""
    parser = argparse.ArgumentParser(prog="python -m common.bench.quoted", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the results' figures into the documents")
    parser.add_argument("--once", action="store_true", help="print the figures of one day, which no result holds")
    arguments = parser.parse_args(words)
    found = 0
    for name, declare in DOCUMENTS.items():
        path = ROOT / name
        text, is_code = path.read_text(encoding="utf-8"), path.suffix == ".py"
        try:
            declared = declare()
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            print(f"{name}: a result lacks what is quoted ({type(error).__name__}: {error})")
            found += 1
            continue
        if arguments.write and (new := rewritten(text, declared, is_code)) != text:
            write_atomically(path, new)
            print(f"{name}: written")
            text = new
        for passage in declared if arguments.once else []:
            if isinstance(passage, Once):
                print(f"{name}: {passage.reason}: {' | '.join(passage.phrases)}")
        wrong = problems(text, declared, is_code)
        found += len(wrong)
        print(*(f"{name}: {problem}" for problem in wrong), sep="\n", end="\n" if wrong else "")
    print(f"{found} disagreements in {len(DOCUMENTS)} documents")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
