"""Which results there are to compare: results files, and the documents that are committed with the stages.

Everything that is compared has the shape of a results file (summary.py). What cannot be compared is refused with a
sentence that names the file, and is never drawn: files of other programs and versions, copies, and entries that were
measured with other sizes than the rest of their group.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.stages import stage_folders

from ..documents import read_json
from ..hardware import ROOT
from ..plots import place
from ..summary import entry_of, read_summary

COURSE = "bench"  # the benchmark of all stages under one load
JUDGE = "judge"  # the size set of the capstone's results, and their only benchmark
HERE = ROOT / "results"  # where `bench` writes about this machine
COMMITTED = ROOT / "common" / "bench" / "results"
SPREAD = ("median", "min", "max")
METRICS = {"tokens_per_second": "Output tokens/s", "ttft_ms": "First token, ms", "tpot_ms": "Output token, ms"}
RATES = ("copy_bytes_per_second", "matmul_flops_per_second")
FACTS = ("dtype", "python", "torch", "transformers", "commit", "date", *RATES)  # required beside those of `group`
# Sizes that do not change the work: what a result is judged by, and extra measurements in older files.
NOTED = {"objectives", "read_bytes", "bookkeeping_batches", "large_model"}


@dataclass(frozen=True)
class Results:
    """What one machine measured with one size set.

    entries: by benchmark, as in a results file. drift: slowest over fastest of the reference product.
    """

    label: str
    path: Path
    machine: Mapping[str, Any]
    size_set: str
    drift: float
    entries: Mapping[str, Mapping[str, Any]]

    @property
    def group(self) -> tuple[str, ...]:
        """Return what results must have in common to share an axis."""
        return (*(str(self.machine[key]) for key in ("device", "model", "load_format")), self.size_set)

    @property
    def course(self) -> Mapping[str, Any]:
        """Return the figures of every stage under one load; empty where they are not at hand."""
        return self.entries.get(COURSE, {}).get("figures", {})

    @property
    def ends(self) -> list[tuple[int, int]]:
        """Return (place among the sizes, clients) of the least and of the most clients of that load."""
        return [(at, self.entries[COURSE]["sizes"]["clients"][at]) for at in (0, -1)] if self.course else []

    def under_load(self, metric: str, at: int) -> list[dict[str, float]]:
        """Return one figure of every stage under that load. at: the place of a number of clients among the sizes."""
        return [{key: figures[metric][key][at] for key in SPREAD} for figures in self.course.values()]


def collect(paths: Sequence[Path]) -> tuple[list[Results], list[str]]:
    """Return the results in these files and folders, or without any this machine's and the committed; and refusals."""
    found, refused = [], []
    if not paths:
        found = committed_documents()
        paths = [folder for folder in (HERE, COMMITTED) if folder.is_dir()]
    inside = [path for folder in paths if folder.is_dir() for path in results_files(folder)]
    files = [path for path in paths if not path.is_dir()] + inside
    if not files and not found:
        refused.append("there are no results yet: `python3 course.py bench --quick` measures this machine")
    for path in files:
        try:
            found.append(read_results(path))
        except ValueError as error:
            refused.append(str(error))
    return keep_comparable(numbered(without_copies(found, refused)), refused), refused


def results_files(folder: Path) -> list[Path]:
    """Return all JSON files except documents of single benchmarks: results files hold what is compared of them."""
    return [path for path in sorted(folder.glob("*.json")) if not is_document(read_json(path))]


def is_document(value: Any) -> bool:
    """Return whether a JSON value is the document of one benchmark."""
    return isinstance(value, dict) and "benchmark" in value


def read_results(path: Path) -> Results:
    """Read a results file. Raise ValueError with a sentence if it is none, or if something that is shown is missing."""
    found = read_summary(path)
    try:
        entries = {name: {"figures": {}} | entry for name, entry in found["benchmarks"].items() if "ratio" in entry}
        results = Results(path.stem, path, found["machine"], found["size_set"], found["drift"], entries)
        _ = results.group, place(results.machine), [results.machine[fact] for fact in FACTS]
        figures = [figure for at, _ in results.ends for metric in METRICS for figure in results.under_load(metric, at)]
        for entry in entries.values():
            _ = entry["sizes"].items(), [entry[key] for key in ("title", "unit", "doubt", "order", "commit", "date")]
            figures += [entry["ratio"], entry["drift"], *entry["sides"].values()]
        if not all(figure[key] > 0 for figure in figures for key in SPREAD):
            raise ValueError("figures that are not positive")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        again = "measure again with `course.py bench`"
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}): {again}") from error
    return results


def committed_documents() -> list[Results]:
    """Return what is committed for each machine, size set and settings, from the documents of all stages."""
    found: dict[str, list[tuple[Path, dict]]] = defaultdict(list)
    for folder in [*(stage / "results" for stage in stage_folders()), COMMITTED]:
        for path in sorted(folder.glob("*.json")):
            if is_document(document := read_json(path)) and "ratio" in document.get("headline", {}):
                found[json.dumps([path.name, document["size_set"], document["settings"]])].append((path, document))
    results = []
    for documents in found.values():
        path, last = documents[-1]
        entries = {each["benchmark"]: entry_of(each) for _, each in documents}
        machine = max((each["hardware"] for _, each in documents), key=lambda facts: facts["date"]) | last["settings"]
        drift = max(entry["drift"]["max"] for entry in entries.values())
        results.append(Results(path.stem, path, machine, last["size_set"], drift, entries))
    return results


# ---- What may be compared ----


def without_copies(found: Sequence[Results], refused: list[str]) -> list[Results]:
    """Keep one of several results with the same measurements, or with fewer of the same."""
    kept: list[tuple[Results, dict[str, Any]]] = []
    for results in found:
        measured = {name: entry["sides"] for name, entry in results.entries.items()}
        same = [other for other, others in kept if measured.items() <= others.items()]
        if not measured:
            refused.append(f"{results.path} holds no headline yet: finish it with `course.py bench`")
        elif same:
            refused.append(f"{results.path} holds the same measurements as {same[0].path}: it is left out")
        else:
            kept.append((results, measured))
    return [results for results, _ in kept]


def numbered(found: Sequence[Results]) -> list[Results]:
    """Number all but the first of the results in a group whose files have the same name, and so the same label."""
    counts, named = Counter(), []
    for results in found:
        counts[key := (results.group, results.label)] += 1
        named.append(replace(results, label=f"{results.label} ({counts[key]})") if counts[key] > 1 else results)
    return named


def keep_comparable(found: Sequence[Results], refused: list[str]) -> list[Results]:
    """Keep, in each group and for each benchmark, entries of the same work: what most of the group have measured."""
    kept = []
    for results in found:
        group, entries = [each for each in found if each.group == results.group], {}
        for name, entry in results.entries.items():
            works = [work_of(each.entries[name]) for each in group if name in each.entries]
            mine, usual = work_of(entry), max(works, key=works.count)  # The first wins a tie.
            if differs := [size for size in mine | usual if mine.get(size) != usual.get(size)]:
                what = f"{name} is left out, which measured other work: another {', '.join(differs)}"
                refused.append(f"{results.path}: {what}")
            else:
                entries[name] = entry
        if entries:
            kept.append(replace(results, entries=entries))
    return kept


def work_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what entries must have in common to be compared: the sizes of the work, and what was measured with it."""
    sizes = {name: size for name, size in entry["sizes"].items() if name not in NOTED and size is not None}
    return sizes | {"sides": sorted(entry["sides"])}
