"""The machine's results file: what every benchmark found here, and how far to trust it.

One file for each machine and size set, `results/<hardware>.json` or `results/<hardware>-quick.json`:

    format, schema   what the file is, and which version of this description it follows
    machine          hardware, cores, memory bandwidth, FLOP/s, versions, commit, date, model, device, dtype
    size_set         "full", "quick", "large", "large-quick" or "gpu": figures of different sets are not comparable
    drift            slowest over fastest of all times of the reference product
    benchmarks       by name: title, unit, more_is_better; "sides": the values of the headline, the baseline first, each
                     with median, min, max and the value of every repeat; "ratio" in the same form; "drift" of the
                     reference product around these sides; "doubt": why the ratio is no result, or null; sizes, order,
                     date, commit, seconds; "figures" by side, as the document has them

Every entry is made from a document, that of one benchmark, with the figures of all sides. `read_summary` refuses what
it cannot compare.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from .documents import read_json
from .harness import Figures, Headline, aggregate, spread
from .plots import short

FORMAT, SCHEMA = "llm-course-results", 1


def read_summary(path: Path) -> dict[str, Any]:
    """Return the results file. Raise InvalidInput with a sentence if it is none, or of another version."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise InvalidInput(f"{path} cannot be read as JSON: give a results file that `course.py bench` has written")
    if document.get("format") != FORMAT:
        raise InvalidInput(f"{path} is no results file of this course: `course.py bench` writes one")
    if document.get("schema") != SCHEMA:
        versions = f"has version {document.get('schema')!r}, and this course reads version {SCHEMA}"
        raise InvalidInput(f"{path} {versions}: measure again with `course.py bench`")
    return document


def new_summary(size_set: str, machine: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "size_set": size_set,
        "machine": machine,
        "drift": 1.0,
        "benchmarks": {},
    }


def with_entry(found: dict[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results file with the entry of a document, in place of an older one."""
    entries = found["benchmarks"] | {document["benchmark"]: entry_of(document)}
    drifted = drift(entry["reference_ms"] for entry in entries.values())
    return found | {"machine": document["hardware"], "drift": drifted, "benchmarks": dict(sorted(entries.items()))}


def document_of(
    name: str,
    headline: Headline | None,
    sizes: dict,
    order: Sequence[Sequence[str]],
    repeats: Sequence[Mapping[str, dict]],
    **facts: Any,
) -> dict[str, Any]:
    """Return the document of a benchmark.

    repeats: the answers of the sides in each, as the harness has them. facts: "hardware", and what else is to be known.
    """
    figures = [figures_of(repeat) for repeat in repeats]
    return {
        "benchmark": name,
        **facts,
        "sizes": sizes,
        "order": order,
        "missing": {side: answer["missing"] for side, answer in repeats[0].items() if "missing" in answer},
        "reference_ms": [{side: answer["reference_ms"] for side, answer in each.items()} for each in repeats],
        "sides": {
            side: aggregate([each[side] for each in figures])
            for side in figures[0]
            if all(side in each for each in figures)
        },
        "headline": headline_entry(headline, sizes, repeats),
        "seconds": sum(answer["seconds"] for repeat in repeats for answer in repeat.values()),
    }


def entry_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a results file has of a benchmark's document."""
    times = [ms for each in document["reference_ms"] for side in each.values() for ms in side]
    entry = document["headline"] | {key: document[key] for key in ("sizes", "order", "seconds")}
    entry |= {"figures": document["sides"], "reference_ms": [min(times), max(times)]}
    return entry | {key: document["hardware"][key] for key in ("commit", "date")}


def headline_entry(headline: Headline | None, sizes: dict, repeats: Sequence[Mapping[str, dict]]) -> dict[str, Any]:
    """Return the headline's part of an entry. repeats: the answers of the sides in each, as the harness has them."""
    if headline is None:
        return {}
    if missing := [side for side in headline.sides if any("figures" not in repeat.get(side, {}) for repeat in repeats)]:
        return {"title": headline.titled(sizes), "doubt": f"{', '.join(missing)} could not be had here"}
    values = [headline.values_of(sizes, figures_of(repeat)) for repeat in repeats]
    first, *_, last = values[0]
    if headline.better == "less":
        first, last = last, first
    ratios = [each[last] / each[first] for each in values]
    factors = [drift(repeat[side]["reference_ms"] for side in headline.sides) for repeat in repeats]
    return {
        "title": headline.titled(sizes),
        "unit": headline.unit,
        "more_is_better": {"more": True, "less": False}.get(headline.better),
        "sides": {name: spread([each[name] for each in values]) for name in values[0]},
        "ratio": spread(ratios),
        "drift": spread(factors),
        "doubt": doubt(spread(ratios), 0.0 if headline.in_turn else max(factors)),
    }


def figures_of(answers: Mapping[str, dict]) -> dict[str, Figures]:
    return {side: answer["figures"] for side, answer in answers.items() if "figures" in answer}


def drift(times: Iterable[Sequence[float]]) -> float:
    """Return slowest over fastest of the reference product, from its times around some sides; 1 on a steady machine."""
    milliseconds = [*chain.from_iterable(times)]
    return max(milliseconds) / min(milliseconds)


def doubt(ratio: Mapping[str, Any], drifted: float) -> str | None:
    """Return why a ratio is no result, else None: its sides drifted by more than it claims, or its repeats disagree."""
    claim = max(ratio["median"], 1 / ratio["median"])
    if drifted >= claim:
        return f"the machine drifted by {drifted - 1:.0%} between the sides, and the ratio claims {claim - 1:.0%}"
    if ratio["min"] < 1 < ratio["max"]:
        return "the repeats disagree about which side is better"
    return None


def table(document: Mapping[str, Any]) -> str:
    """Return all benchmarks of a results file, a line each; below it, why some ratios are marked with "?"."""
    entries: dict[str, dict] = document["benchmarks"]
    width, lines, notes = max(map(len, entries), default=0), [], []
    for name, entry in entries.items():
        if "ratio" not in entry:
            lines.append(f"{name:{width}}  {entry.get('doubt') or 'measured'}")
            continue
        mark = "?" if entry["doubt"] else " "
        (before, old), *_, (now, new) = entry["sides"].items()
        ratio, low, high = (entry["ratio"][key] for key in ("median", "min", "max"))
        spread_and_drift = f"({low:.2f} to {high:.2f}, drift {entry['drift']['max'] - 1:4.0%})"
        values = f"{before} {short(old['median'])}, {now} {short(new['median'])} {entry['unit']}"
        lines.append(f"{name:{width}} {mark}{ratio:6.2f} times   {spread_and_drift:29}   {entry['title']}: {values}")
        if entry["doubt"]:
            notes.append(f"? {name}: {entry['doubt']}; this is noise, not a result.")
    whole = f"The machine's speed changed by {document['drift'] - 1:.0%} at most meanwhile."
    return "\n".join([*lines, *notes, whole])
