"""What stage 08's router does for one report, with many requests in flight and nothing else: no model, no processes.

The workers are those of a fleet that answers at once and computes nothing. "decode": all requests decode, and each
report brings a token for `REPORTED` of them. "ready": all wait for room on the decode worker, and each report says that
there is none, with a heartbeat that tells all that is held. Figures are milliseconds of `Router.step` for each report,
the detokenizer not included.
"""

import itertools
import os
import statistics
import time
from types import SimpleNamespace

import torch

from common.sampling import SamplingParams
from common.stages import load_stage_module

FLIGHTS, REPORTED, REPORTS = 1000, 64, 200
MODEL = SimpleNamespace(
    name="none", model=None, tokenizer=None, eos_token_ids=frozenset(), sampling_defaults={},
    device=torch.device("cpu"), dtype=torch.float32,
    config=SimpleNamespace(vocab_size=4096, context_length=4096),
)  # fmt: skip


def milliseconds(phase: str, flights: int = FLIGHTS) -> float:
    """Return the median of REPORTS steps, a report in each, all flights in that phase ("decode" or "ready")."""
    messages, router_module = (load_stage_module("08", name) for name in ("messages", "router"))
    hello = messages.Hello("", 0.0, os.getpid(), 10**6, 16, flights, "")
    pending = [(0, hello), (1, hello)]

    class Fleet:
        def send(self, number, mail):
            for order in mail.orders:
                places[number, order.key] = len(order.token_ids)

        def events(self, seconds):
            events, pending[:] = list(pending), []
            return events

    places: dict[tuple[int, str], int] = {}
    router = router_module.Router(MODEL, Fleet(), ["prefill", "decode"], 60.0)
    for number in range(flights):
        router.add([number % 4000] * 32, SamplingParams(max_tokens=4000, ignore_eos=True))
    router.step()
    room = 10**6 if phase == "decode" else 0
    first = [messages.Gain(key, 0, [1], [], 0, False) for _, key in places]
    parked = [(key, "ticket") for _, key in places]
    pending += [(1, messages.Report(available=room)), (0, messages.Report(gains=first, parked=parked))]
    router.step()
    turns, seconds = itertools.cycle(list(router.flights)), []
    for _ in range(REPORTS):
        keys = [next(turns) for _ in range(REPORTED)] if phase == "decode" else []
        gains = [messages.Gain(k, len(router.flights[k].request.token_ids), [1], [], 0, False) for k in keys]
        pending.append((1, messages.Report(gains=gains, available=room)))
        if phase == "ready":
            held = frozenset(router.flights)
            pending.append((0, messages.Report(heartbeat=messages.Heartbeat(10**6, held, held, {}))))
        start = time.perf_counter()
        router.step()
        seconds.append(time.perf_counter() - start)
    assert {flight.phase for flight in router.flights.values()} <= {phase, "transfer"}, "not what was to be measured"
    return 1e3 * statistics.median(seconds)
