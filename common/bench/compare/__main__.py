"""Draws results beside each other: one HTML page that loads nothing.

    python3 course.py compare                          this machine's results beside the committed ones
    python3 course.py compare anna.json ben.json ...   files of a class; a folder stands for all that it holds

Ratios come first, absolute figures second. Results share an axis only if device, model and size set are the same. With
four machines or more the page has the median of the class, and says what differs about the odd ones out. A file that
cannot be compared is left out with a sentence.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import jinja2  # It comes with Flask, and with torch.

from common.errors import counted
from common.terminal import note, parser_of, run_to_end

from ..documents import write_atomically
from ..hardware import slugify
from ..plots import place, short
from .drawing import draw
from .panels import OVER_FIRST, Group, figures_of
from .sources import HERE, JUDGE, Results, collect

MIN_DRIFT = 1.1  # slowest over fastest of the reference product: above it, the page reports the drift at its top
SETS = {"quick": "the quick benchmark", "full": "the whole benchmark", "gpu": "the GPU benchmark"}
SETS |= {"large": "the whole benchmark, with the sizes for a real model", "large-quick": SETS["quick"]}
SETS |= {JUDGE: "the capstone"}
TEMPLATE = Path(__file__).with_name("page.html")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; return 1, with sentences, if there is nothing to compare."""
    args = parser_of("course.py compare", __doc__).parse_args(arguments)
    found, refused = collect(args.files)
    models = sorted({results.machine["model"] for results in found})
    if args.model and args.model not in models:
        refused.append(f"there are no results of the model {args.model!r}, only of: {', '.join(models) or 'none'}")
    found = [results for results in found if args.model in (None, results.machine["model"])]
    drifted = [
        f"{results.path.name}: its own speed changed by {results.drift - 1:.0%} while it was measured."
        for results in found
        if results.drift > MIN_DRIFT
    ]
    for sentence in [f"left out: {each}" for each in refused] + [f"drift: {each}" for each in drifted]:
        note(sentence)
    if not found:
        return 1
    keys = dict.fromkeys(results.group for results in found)
    groups = [Group([each for each in found if each.group == key]) for key in keys]
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    helpers = {"title": title, "lead": lead, "draw": draw, "behind": behind, "here": HERE}
    helpers |= {"short": short, "place": place, "slug": slugify}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"), helpers)
    page = (args.out or HERE / "compare") / "index.html"
    write_atomically(page, template.render(groups=groups, drifted=drifted, refused=refused))
    print(page)
    return 0


def title(group: Group) -> str:
    first = group.members[0]
    device = "GPU" if first.machine["device"] == "cuda" else first.machine["device"].upper()
    weights = ", random weights" if first.machine["load_format"] == "dummy" else ""
    return f"{device}: {SETS.get(first.size_set, first.size_set)}, {first.machine['model']} model{weights}"


def lead(group: Group) -> str:
    """Return how far the staircase leads with the most clients, in the median of all machines."""
    if group.is_capstone:
        return "What each server gives within the objectives, over the reference on the same machine."
    if not group.with_course:
        return "Each stage against the one before it."
    [metric], first = OVER_FIRST, group.with_course[0]
    each = [[figure["median"] for figure in figures_of(results, metric, -1)] for results in group.with_course]
    medians = dict(zip(first.course, map(statistics.median, zip(*each, strict=True)), strict=True))
    best = max(medians, key=medians.get)
    where = f", in the median of {len(each)} machines" if len(each) > 1 else ""
    load, factor = counted(first.ends[-1][1], "client"), short(medians[best])
    return f"Stage {best[:2]} gives {load} {factor} times the tokens per second of stage {[*medians][0][:2]}{where}."


def behind(results: Results) -> str:
    """Return what a machine's file says of every benchmark, but for the figures of each side, as JSON."""
    kept = {name: {key: entry[key] for key in entry if key != "figures"} for name, entry in results.entries.items()}
    return json.dumps(kept, indent=1)


if __name__ == "__main__":
    run_to_end(main)
