"""What must be said beside every figure: on what it was measured, with which versions and commit, and its spread."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from common.errors import counted

from ..plots import place
from .classroom import differences
from .sources import Results


def describe(results: Results, group: Sequence[Results]) -> dict[str, Any]:
    """Describe a machine: its label, its file, its facts in words by their heading, and what differs about it."""
    facts, entries = results.machine, results.entries.values()
    dates = sorted({str(entry["date"])[:10] for entry in entries})
    return {
        "label": results.label,
        "here": results.here,
        "file": results.path.name,
        "facts": {
            "hardware": facts["gpu"] or facts["cpu"],
            "cores": f"{counted(facts['cpu_cores'], 'core')}, {counted(facts.get('torch_threads', 0), 'thread')}",
            "memory": rate(facts.get("copy_bytes_per_second"), "GB/s"),
            "matrix products": rate(facts.get("matmul_flops_per_second"), "GFLOP/s"),
            "dtype": facts["dtype"],
            "drift": "not recorded" if results.drift is None else f"{results.drift - 1:.0%}",
            "versions": f"Python {facts['python']}, torch {facts['torch']}, transformers {facts['transformers']}",
            "commit": ", ".join(commits(entries)) + " with changes" * bool(facts.get("uncommitted_changes")),
            "date": " to ".join(dict.fromkeys([dates[0], dates[-1]])),
        },
        "differs": differences(results, group) if len(group) > 1 else [],
    }


def rate(per_second: float | None, unit: str) -> str:
    return f"{per_second / 1e9:,.0f} {unit}" if per_second else "not recorded"


def commits(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({str(entry["commit"]) for entry in entries})


def named_hardware(results: Results) -> str:
    """Return the label, with the hardware unless it says that already, and the dtype."""
    hardware = place(results.machine)
    label = results.label if results.label.startswith(hardware) else f"{results.label}: {hardware}"
    return f"{label}, {results.machine['dtype']}"


def caption(group: Sequence[Results], names: Sequence[str]) -> str:
    """Return two lines of small print: hardware and dtype; versions, commits and what the spread is."""
    shown = [results for results in group if any(name in results.entries for name in names)]
    entries = [results.entries[name] for results in shown for name in names if name in results.entries]
    hardware = "; ".join(named_hardware(results) for results in shown)
    versions = ", ".join(sorted({f"torch {results.machine['torch']}" for results in shown}))
    repeats = sorted({len(entry["order"]) for entry in entries})
    times = " to ".join(str(count) for count in dict.fromkeys([repeats[0], repeats[-1]]))
    spread = "one run each, so no spread" if repeats == [1] else f"medians of {times} repeats, lines from least to most"
    where = f"{hardware}." if len(shown) <= 3 else f"{len(shown)} machines, each of them described on the page."
    return f"{where}\n{versions}; commit {', '.join(commits(entries))}; {spread}."
