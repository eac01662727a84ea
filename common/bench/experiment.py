"""The command line of an experiment: a measurement that compares no stages, such as a soak.

    def measure(settings: Settings, stage: str = "06", minutes: float = 5.0) -> Figures: ...

    if __name__ == "__main__":
        sys.exit(run_experiment(measure))

The signature of `measure` is the command line: each parameter is an option of that name and default. The figures that
it returns become one JSON document, with hardware, settings and options: the last line on stdout, and the file that
--json names.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .documents import write_json
from .hardware import ROOT, hardware
from .harness import Figures
from .settings import Settings


def run_experiment(
    measure: Callable[..., Figures],
    arguments: Sequence[str] | None = None,
    *,
    table: Callable[[dict], Iterable[str]] = lambda document: (),
    path: Callable[[dict], Path | None] = lambda document: None,
    draw: Callable[[dict, Path], None] | None = None,
    **defaults: Any,
) -> int:
    """Parse the command line, measure, print the table and the document; return the exit status.

    That is 1 if something is "wrong" among the figures, or if a ValueError says why there are none. path: where the
    document goes without --json. draw: draws the document, as the PNG beside it. defaults: of the options for the
    model, as `Settings` has them.
    """
    name = ".".join(Path(inspect.getfile(measure)).resolve().relative_to(ROOT).with_suffix("").parts)
    parser = argparse.ArgumentParser(
        f"python -m {name}",
        description=sys.modules[measure.__module__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _, *options = inspect.signature(measure).parameters.values()
    for option in options:
        flag = f"--{option.name.replace('_', '-')}"
        if option.default is False:
            parser.add_argument(flag, action="store_true")
        else:
            kind = float if option.default is None else type(option.default)
            parser.add_argument(flag, type=kind, default=option.default, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document there, too")
    Settings.add_arguments(parser)
    parser.set_defaults(**defaults)
    args = parser.parse_args(arguments)
    settings, sizes = Settings.from_arguments(args), {option.name: vars(args)[option.name] for option in options}
    try:
        figures = measure(settings, **sizes)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    document = {"benchmark": name, "settings": settings.describe(), "hardware": hardware(settings.place()[0])}
    document |= {"sizes": sizes, **figures}
    file = args.json or path(document)
    print(*table(document), write_json(file, document), sep="\n")
    if draw and file:
        draw(document, file.with_suffix(".png"))
    return int(bool(document.get("wrong")))
