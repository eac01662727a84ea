"""Draws results beside each other: one HTML page that loads nothing, and PNGs.

    python3 course.py compare                          this machine's results beside the committed ones
    python3 course.py compare anna.json ben.json ...   files of a class; a folder stands for all that it holds

Ratios come first, absolute figures second. Results share an axis only if device, model and size set are the same. With
four machines or more the page has the median of the class, and says what differs about the odd ones out. A file that
cannot be compared is left out with a sentence; an earlier comparison is kept in a folder of its own.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import jinja2  # Flask needs it, and so does torch

from common.errors import counted
from common.terminal import note, run_to_end

from ..documents import write_atomically
from ..hardware import slugify
from ..plots import place, short
from .drawing import draw
from .panels import FEW, Group, over_first
from .sources import HERE, JUDGE, Results, collect

LEAST_DRIFT = 1.1  # slowest over fastest of the reference product, from which on it is said at the top
SETS = {"quick": "the quick benchmark", "full": "the whole benchmark", "gpu": "the GPU benchmark"}
SETS |= {"large": SETS["full"], "large-quick": SETS["quick"], JUDGE: "the capstone"}
KINDS = ("gains", "stairs", "absolute")  # of panels
TEMPLATE = Path(__file__).with_name("page.html")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write page and pictures; return 1, with sentences, if there is nothing to compare."""
    parser = argparse.ArgumentParser(
        "course.py compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="results files of `bench`, or folders")
    parser.add_argument("--out", type=Path, default=HERE / "compare", metavar="DIR", help="default: results/compare")
    args = parser.parse_args(arguments)
    found, refused = collect(args.files)
    drifted = [
        f"{results.label}: its own speed changed by {results.drift - 1:.0%} while it was measured."
        for results in found
        if results.drift > LEAST_DRIFT
    ]
    for sentence in [f"left out: {each}" for each in refused] + [f"drift: {each}" for each in drifted]:
        note(sentence)
    if not found:
        return 1
    if earlier := keep_earlier(args.out):
        note(f"the comparison that was there is kept in {earlier}")
    keys = dict.fromkeys(results.group for results in found)
    groups = [shown(Group([each for each in found if each.group == key]), args.out) for key in keys]
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    helpers = {"short": short, "place": place, "slug": slugify, "rate": rate, "behind": behind, "here": HERE}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"), helpers)
    page = args.out / "index.html"
    write_atomically(page, template.render(groups=groups, drifted=drifted, refused=refused))
    print(page, *(panel["png"] for group in groups for panel in group["panels"]), sep="\n")
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


def shown(group: Group, out: Path) -> dict[str, Any]:
    """Draw the panels of a group; return what the page shows of it."""
    facts, size_set = group.members[0].machine, group.members[0].size_set
    device = "GPU" if facts["device"] == "cuda" else facts["device"].upper()
    weights = ", random weights" if facts["load_format"] == "dummy" else ""
    title = f"{device}: {SETS.get(size_set, size_set)}, {facts['model']} model{weights}"
    panels = []
    for panel in group.panels():
        png, text = out / f"{slugify(title)}-{panel.kind}.png", caption(group.members, panel.names)
        panels.append({"png": png, "caption": text, "svg": draw(panel, png, text, title), "panel": panel})
    machines = [
        {"results": each, "facts": each.machine, "far": group.odd.get(place), "differs": group.differences(each)}
        for place, each in enumerate(group.members)
    ]
    return {"title": title, "lead": lead(group), "panels": panels, "machines": machines, "group": group}


# ---- What is said in words ----


def lead(group: Group) -> str:
    """Return how far the staircase leads with the most clients: the median of a class; fewer machines are named."""
    if group.is_capstone:
        return "What each server gives within the objectives, over the reference on the same machine."
    if not group.with_course:
        return "Each stage against the one before it."
    clients = group.with_course[0].ends[-1][1]
    each = [[figure["median"] for figure in over_first(results)[-1][1]] for results in group.with_course]
    medians = list(map(statistics.median, zip(*each, strict=True)))
    best = medians.index(max(medians))
    factors, where = " and ".join(short(one[best]) for one in each), ""
    if group.is_class:
        factors, where = short(medians[best]), f", in the median of {len(each)} machines"
    elif len(each) > 1:
        where = f" ({'; '.join(results.label for results in group.with_course)})"
    first, *_ = names = [name[:2] for name in group.with_course[0].course]
    load = counted(clients, "client")
    return f"Stage {names[best]} gives {load} {factors} times the tokens per second of stage {first}{where}."


def caption(group: Sequence[Results], names: Sequence[str]) -> str:
    """Return two lines of small print: hardware and dtype; versions, commits and what the spread is."""
    shown = [results for results in group if any(name in results.entries for name in names)]
    entries = [results.entries[name] for results in shown for name in names if name in results.entries]
    hardware = "; ".join(named_hardware(results) for results in shown)
    where = hardware if len(shown) <= FEW else f"{len(shown)} machines, each of them described on the page"
    versions = ", ".join(sorted({f"torch {each.machine['torch']}" for each in shown}))
    commits = ", ".join(sorted({str(entry["commit"]) for entry in entries}))
    least, most = (choose(len(entry["order"]) for entry in entries) for choose in (min, max))
    times = str(least) if least == most else f"{least} to {most}"
    spread = "one run each, so no spread" if most == 1 else f"medians of {times} repeats, lines from least to most"
    return f"{where}.\n{versions}; commit {commits}; {spread}."


def named_hardware(results: Results) -> str:
    """Return the label, with the hardware unless it says that already, and the dtype."""
    hardware = place(results.machine)
    label = results.label if results.label.startswith(hardware) else f"{results.label}: {hardware}"
    return f"{label}, {results.machine['dtype']}"


def rate(per_second: float | None) -> str:
    return f"{per_second / 1e9:,.0f}" if per_second else "?"


def behind(results: Results) -> str:
    """Return what a machine's file says of every benchmark, but for the figures of each side, as JSON."""
    kept = {name: {key: entry[key] for key in entry if key != "figures"} for name, entry in results.entries.items()}
    return json.dumps(kept, indent=1)


if __name__ == "__main__":
    run_to_end(main)
