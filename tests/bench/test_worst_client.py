"""The benchmark of the worst client, in a small size: every request is answered as it should be, and streams go on."""

import asyncio

from serving_openai import openai_server

from common.bench.experiments.worst_client import attacks, measure
from common.stages import load_engine


def test_the_worst_requests_are_answered_as_they_should_be(loaded):
    engine = load_engine("06")(loaded, kv_memory="4M")  # a short context, so that the test is not long
    with openai_server("06", loaded, engine=engine) as service:
        figures = asyncio.run(measure(service.url, streams=2, seconds=0.1, tokens=8))
    assert figures.keys() == {"nothing", *attacks(100)}
    for name, figure in figures.items():
        assert figure["longest_gap_s"] > 0 and not figure.get("wrong"), name
