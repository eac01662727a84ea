"""Results files as `bench --quick` writes them, small and with known figures: results.json, and variations of it."""

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("results.json")
SLOWEST = 50.0  # tokens a second of stage 01 in it
GAIN, BATCHING = 4.0, 5.0  # ratios of stages 02 and 04 in it


def write_results(path: Path, **variation: Any) -> Path:
    """Write the results of one machine; variation: as of `results`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results(**variation)))
    return path


def results(
    gain=GAIN, batching=BATCHING, drift=1.1, doubt: str | None = None, size_set="quick", **machine: Any
) -> dict[str, Any]:
    """Return the file with these ratios of stages 02 and 04, doubt about the first; machine: facts of its own."""
    document = json.loads(FILE.read_text())
    document |= {"size_set": size_set, "drift": drift, "machine": document["machine"] | machine}
    slower, faster = ("01_naive", gain / GAIN), ("04_continuous_batching", batching / BATCHING)
    for entry, (side, factor) in zip(document["benchmarks"].values(), (slower, faster, faster), strict=True):
        entry |= {"ratio": scaled(entry["ratio"], factor), "drift": dict.fromkeys(entry["drift"], drift)}
        for figures in (entry["sides"], entry["figures"]):
            figures[side] = scaled(figures[side], factor)
    document["benchmarks"]["02_kv_cache"]["doubt"] = doubt
    return document


def scaled(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: scaled(each, factor) for key, each in value.items()}
    return [scaled(each, factor) for each in value] if isinstance(value, list) else value * factor
