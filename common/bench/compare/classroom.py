"""Many machines: what differs between them, the median of a class, and which of its machines are odd."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from common.errors import counted

from .sources import Results

LEAST = 4  # machines that make a class: among fewer, none can be called the odd one
ODD = 3.0  # robust standard deviations from the median
LEAST_DEVIATION = math.log(1.1)  # a class that agrees to the percent has odd ones only beyond three times this
CLEAR = 1.3  # the factor by which a rate or a speed has changed when it is worth a word
FACTS = {  # what most of the machines have, and one may not
    "cpu_cores": lambda count: counted(count, "core"),
    "torch_threads": lambda count: counted(count, "thread"),
    "gpu": lambda name: name or "no GPU",
    "dtype": str,
    "torch": lambda version: f"torch {version}",
    "commit": lambda commit: f"commit {commit}",
}
RATES = {"copy_bytes_per_second": "memory bandwidth", "matmul_flops_per_second": "matrix products"}


def differences(results: Results, group: Sequence[Results]) -> list[str]:
    """Say what is different about one machine: facts that most others have otherwise, rates, and a busy machine."""
    found = []
    for key, say in FACTS.items():
        usual = most_common([each.machine.get(key) for each in group])
        if results.machine.get(key) != usual:
            found.append(f"{say(results.machine.get(key))} ({'others' if len(group) > 2 else 'other'}: {say(usual)})")
    for key, name in RATES.items():
        rates = [each.machine[key] for each in group if each.machine.get(key)]
        if results.machine.get(key) and abs(math.log(factor := results.machine[key] / middle(rates))) > math.log(CLEAR):
            found.append(f"{name} {factor:.1f} times the {'median' if len(group) > 2 else 'other'}")
    if results.drift and results.drift > CLEAR:
        found.append(f"busy: its own speed changed by {results.drift - 1:.0%} meanwhile")
    return found


def odd_machines(
    group: Sequence[Results], rows: Mapping[str, Mapping[int, float]]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the class's median of each row, by its name; and the machines that are far from some of them.

    rows: for each name the ratio of each machine, by its place in the group. Nothing where there are too few machines.
    """
    medians: dict[str, float] = {}
    far: dict[int, list[str]] = {}
    for name, values in rows.items():
        if len(values) >= LEAST:
            medians[name], odd = odd_ones(values)
            for place, factor in odd.items():
                far.setdefault(place, []).append(f"{name}: {values[place]:.1f} times, {factor:.1f} of the median")
    odd = [{"machine": place, "far": far[place], "differs": differences(group[place], group)} for place in sorted(far)]
    return medians, odd


def most_common(values: Sequence[Any]) -> Any:
    return Counter(values).most_common(1)[0][0]


def middle(rates: Sequence[float]) -> float:
    """Return the median of many; of two the first, with which the second is compared."""
    return statistics.median(rates) if len(rates) > 2 else rates[0]


def odd_ones(values: Mapping[int, float]) -> tuple[float, dict[int, float]]:
    """Return the median of positive values by machine, and those that are far from it, as factors of the median.

    Far is beyond ODD times the median absolute deviation of the logarithms, as a standard deviation.
    """
    median = statistics.median(values.values())
    logs = {place: math.log(value / median) for place, value in values.items()}
    deviation = max(1.4826 * statistics.median(map(abs, logs.values())), LEAST_DEVIATION)
    return median, {place: values[place] / median for place, log in logs.items() if abs(log) > ODD * deviation}
