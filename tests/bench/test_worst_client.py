"""The benchmark of the worst client, in a small size: every request is answered as it should be, and streams go on."""

import asyncio

from serving_openai import openai_server

from common.bench.experiments.worst_client import NOTHING, attacks, table, watch
from common.bench.harness import spread
from common.stages import load_engine


def test_the_worst_requests_are_answered_as_they_should_be(loaded):
    engine = load_engine("06")(loaded, kv_memory="4M")  # a short context, so that the test is not long
    with openai_server("06", loaded, engine=engine) as service:
        found = asyncio.run(watch(service.url, streams=2, seconds=0.1, windows=1, tokens=8))
    assert not found["wrong"] and list(found["sides"]) == [NOTHING, *attacks(100)]
    for kind, figures in found["sides"].items():
        gaps = figures["longest_gap_s"]
        assert len(gaps["values"]) == 1 and 0 < gaps["median"] <= gaps["max"], kind
        assert (figures["sent"]["min"] > 0) == (kind != NOTHING)


def test_the_table_shows_the_median_of_the_windows_and_the_largest():
    sides = {"longest prompt": {"longest_gap_s": spread([0.1, 0.5, 0.2])}}
    [_, line, wrong] = table({"sides": sides, "wrong": {"hanging up": ["status 500"]}})
    assert line.split() == ["longest", "prompt", "200", "500"] and wrong == "hanging up: status 500"
