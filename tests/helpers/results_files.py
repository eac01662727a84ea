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
    def entry(title, unit, more_is_better, sides, ratio, figures, sizes, doubt=None) -> dict[str, Any]:
        return {
            "title": title, "unit": unit, "more_is_better": more_is_better, "doubt": doubt, "sizes": sizes,
            "sides": {side: spread([value, value * 1.1]) for side, value in sides.items()},
            "ratio": spread([ratio * 0.95, ratio * 1.05]), "drift": spread([drift, drift]),
            "figures": {side: {name: spread([value, value]) for name, value in each.items()}  # two repeats that agree
                        for side, each in figures.items()},
            "order": [list(sides), list(sides)[::-1]], "commit": "0123456789", "date": "2026-11-22T10:00",
            "seconds": 1.0,
        }  # fmt: skip

    naive, cached, batched = STAGES
    more = {naive: 1.0, cached: 1.0, batched: batching / 5}
    writing = {naive: {"ms_per_token": [12.0], "seconds": [gain]}, cached: {"ms_per_token": [3.0], "seconds": [1.0]}}
    clients = {"clients": [1, 32], "compared_clients": 32}
    whole = {stage: SLOWEST * STAIRS[stage][1] * more[stage] for stage in STAGES}
    benchmarks = {
        "02_kv_cache": entry(
            "a whole answer of 192 tokens", "s", False, {naive: gain, cached: 1.0}, gain, writing,
            {"lengths": [512], "calibration_length": 512, "prompt": 32, "compared_answer": 192}, doubt,
        ),
        "04_continuous_batching": entry(
            "32 clients", "output tokens/s", True, {"03_streaming": 200.0, batched: 200.0 * batching}, batching,
            {batched: {"requests_per_step": [16.0]}}, clients | {"clients": [32]},
        ),
        "bench": entry(
            "all stages under one load, 32 clients", "output tokens/s", True, whole, 2.0 * batching,
            {stage: course_figures(stage, more[stage]) for stage in STAGES}, clients,
        ),
    }  # fmt: skip
    kind = {"format": FORMAT, "schema": SCHEMA, "size_set": size_set, "drift": drift}
    return kind | {"machine": MACHINE | machine, "benchmarks": benchmarks}


def course_figures(stage: str, more: float) -> dict[str, list[float]]:
    alone, together = STAIRS[stage]
    rates = [SLOWEST * alone, SLOWEST * together * more]
    return {"tokens_per_second": rates, "ttft_ms": [8.0, 2000 / together], "tpot_ms": [1e3 / rates[0], 32e3 / rates[1]]}
