"""Draws results beside each other: one HTML page that loads nothing.

    python3 course.py compare                          this machine's results beside the committed ones
    python3 course.py compare anna.json ben.json ...   files of a class; a folder stands for all that it holds

Ratios come first, absolute figures second. Results share an axis only if device, model and size set are the same. With
four machines or more the page has the median of the class, and says what differs about the odd ones out. A file that
cannot be compared is left out with a sentence.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2  # Flask needs it, and so does torch

from common.errors import counted
from common.terminal import note, run_to_end

from ..documents import write_atomically
from ..hardware import slugify
from ..plots import place, short
from .drawing import draw
from .panels import Group, over_first
from .sources import HERE, JUDGE, Results, collect

LEAST_DRIFT = 1.1  # slowest over fastest of the reference product, from which on it is said at the top
SETS = {"quick": "the quick benchmark", "full": "the whole benchmark", "gpu": "the GPU benchmark"}
SETS |= {
    "large": "the whole benchmark, with the sizes for a real model",
    "large-quick": SETS["quick"],
    JUDGE: "the capstone",
}
TEMPLATE = Path(__file__).with_name("page.html")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; return 1, with sentences, if there is nothing to compare."""
    parser = argparse.ArgumentParser(
        "course.py compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="results files of `bench`, or folders")
    parser.add_argument("--model", metavar="NAME", help="only its results, such as smollm2 or bundled")
    parser.add_argument("--out", type=Path, default=HERE / "compare", metavar="DIR", help="default: results/compare")
    args = parser.parse_args(arguments)
    found, refused = collect(args.files)
    models = sorted({results.machine["model"] for results in found})
    if args.model and args.model not in models:
        refused.append(f"there are no results of the model {args.model!r}, only of: {', '.join(models) or 'none'}")
    found = [results for results in found if args.model in (None, results.machine["model"])]
    drifted = [
        f"{results.path.name}: its own speed changed by {results.drift - 1:.0%} while it was measured."
        for results in found
        if results.drift > LEAST_DRIFT
    ]
    for sentence in [f"left out: {each}" for each in refused] + [f"drift: {each}" for each in drifted]:
        note(sentence)
    if not found:
        return 1
    keys = dict.fromkeys(results.group for results in found)
    groups = [shown(Group([each for each in found if each.group == key])) for key in keys]
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    helpers = {"short": short, "place": place, "slug": slugify, "rate": rate, "behind": behind, "here": HERE}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"), helpers)
    page = args.out / "index.html"
    write_atomically(page, template.render(groups=groups, drifted=drifted, refused=refused))
    print(page)
    return 0


def shown(group: Group) -> dict[str, Any]:
    """Return what the page shows of a group."""
    facts, size_set = group.members[0].machine, group.members[0].size_set
    device = "GPU" if facts["device"] == "cuda" else facts["device"].upper()
    weights = ", random weights" if facts["load_format"] == "dummy" else ""
    machines = [
        {"results": each, "facts": each.machine, "far": group.odd.get(place), "differs": group.differences(each)}
        for place, each in enumerate(group.members)
    ]
    return {
        "title": f"{device}: {SETS.get(size_set, size_set)}, {facts['model']} model{weights}",
        "lead": lead(group),
        "panels": [{"svg": draw(panel), "panel": panel} for panel in group.panels()],
        "machines": machines,
        "group": group,
    }


def lead(group: Group) -> str:
    """Return how far the staircase leads with the most clients: of a class the median."""
    if group.is_capstone:
        return "What each server gives within the objectives, over the reference on the same machine."
    if not group.with_course:
        return "Each stage against the one before it."
    each = [[figure["median"] for figure in over_first(results)[-1][1]] for results in group.with_course]
    medians = list(map(statistics.median, zip(*each, strict=True)))
    best = medians.index(max(medians))
    factors, where = " and ".join(short(one[best]) for one in each), ""
    if group.is_class:
        factors, where = short(medians[best]), f", in the median of {len(each)} machines"
    first, *_ = names = [name[:2] for name in group.with_course[0].course]
    load = counted(group.with_course[0].ends[-1][1], "client")
    return f"Stage {names[best]} gives {load} {factors} times the tokens per second of stage {first}{where}."


def rate(per_second: float | None) -> str:
    return f"{per_second / 1e9:,.0f}" if per_second else "?"


def behind(results: Results) -> str:
    """Return what a machine's file says of every benchmark, but for the figures of each side, as JSON."""
    kept = {name: {key: entry[key] for key in entry if key != "figures"} for name, entry in results.entries.items()}
    return json.dumps(kept, indent=1)


if __name__ == "__main__":
    run_to_end(main)
