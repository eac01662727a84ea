"""Results files as `bench --quick` writes them, small and with known figures."""

import json
from pathlib import Path
from typing import Any

from common.bench.harness import spread
from common.bench.summary import FORMAT, SCHEMA

MACHINE = {
    "device": "cpu", "cpu": "AMD EPYC", "cpu_cores": 2, "ram_gib": 8.0, "gpu": None, "os": "Linux 6 x86_64",
    "python": "3.11.7", "torch": "2.13.0", "transformers": "5.23.0", "torch_threads": 2, "commit": "0123456789",
    "uncommitted_changes": False, "date": "2026-11-22", "model": "bundled", "dtype": "float32", "load_format": "auto",
    "copy_bytes_per_second": 2e10, "matmul_flops_per_second": 1e11,
}  # fmt: skip
STAGES = ["01_naive", "02_kv_cache", "04_continuous_batching"]
STAIRS = {"01_naive": (1.0, 1.0), "02_kv_cache": (2.0, 2.5), "04_continuous_batching": (2.0, 10.0)}  # 1, 32 clients
SLOWEST = 50.0  # tokens a second of stage 01


def write_results(
    path: Path, gain: float = 4.0, batching: float = 5.0, drift: float = 1.1, doubt: str | None = None, **machine: Any
) -> Path:
    """Write the results of one machine. gain, batching: the ratios of stages 02 and 04; machine: facts of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results(gain, batching, drift, doubt, **machine)))
    return path


def results(gain=4.0, batching=5.0, drift=1.1, doubt=None, size_set="quick", **machine: Any) -> dict[str, Any]:
    common = {"commit": "0123456789", "date": "2026-11-22T10:00", "seconds": 1.0, "document": None}
    whole = {STAGES[0]: gain, STAGES[1]: 1.0}
    kv_cache = {"ms_per_token": [12.0], "seconds": [gain]}, {"ms_per_token": [3.0], "seconds": [1.0]}
    benchmarks = {
        "02_kv_cache": entry("a whole answer of 192 tokens", "s", False, whole, gain, drift, doubt)
        | {"figures": {side: of(figures) for side, figures in zip(STAGES[:2], kv_cache, strict=True)}}
        | {"sizes": {"lengths": [512], "calibration_length": 512, "prompt": 32, "compared_answer": 192}},
        "04_continuous_batching": entry(
            "32 clients", "output tokens/s", True, {"03_streaming": 200.0, STAGES[2]: 200.0 * batching}, batching, drift
        )
        | {"figures": {STAGES[2]: of({"requests_per_step": [16.0]})}}
        | {"sizes": {"clients": [32], "compared_clients": 32}},
        "bench": entry(
            "all stages under one load, 32 clients", "output tokens/s", True,
            {stage: SLOWEST * STAIRS[stage][1] * (batching / 5) ** (stage == STAGES[2]) for stage in STAGES},
            10.0 * batching / 5, drift,
        )
        | {"figures": {stage: of(course_figures(stage, batching / 5)) for stage in STAGES}}
        | {"sizes": {"clients": [1, 32], "compared_clients": 32}},
    }  # fmt: skip
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "size_set": size_set,
        "machine": MACHINE | machine,
        "drift": drift,
        "benchmarks": {name: entry | common for name, entry in benchmarks.items()},
    }


def entry(title, unit, more_is_better, sides, ratio, drift, doubt=None) -> dict[str, Any]:
    return {
        "title": title,
        "unit": unit,
        "more_is_better": more_is_better,
        "sides": {side: spread([value, value * 1.1]) for side, value in sides.items()},
        "ratio": spread([ratio * 0.95, ratio * 1.05]),
        "drift": spread([drift, drift]),
        "doubt": doubt,
        "order": [list(sides), list(sides)[::-1]],
    }


def course_figures(stage: str, more: float) -> dict[str, list[float]]:
    alone, together = STAIRS[stage]
    rates = [SLOWEST * alone, SLOWEST * together * (more if stage == STAGES[2] else 1)]
    return {"tokens_per_second": rates, "ttft_ms": [8.0, 2000 / together], "tpot_ms": [1e3 / rates[0], 32e3 / rates[1]]}


def of(figures: dict[str, Any]) -> dict[str, Any]:
    """Two repeats that agree."""
    return {name: spread([value, value]) for name, value in figures.items()}
