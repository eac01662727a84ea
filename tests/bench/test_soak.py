"""The soak's worst client: each of the worst requests there is gets an answer that a server may give."""

import asyncio

import httpx
import pytest

from common.bench.experiments.soak import attacks, main, send
from common.errors import InvalidInput
from common.stages import load_engine
from tests.helpers.serving_openai import openai_server


def test_the_worst_requests_are_answered_as_they_should_be(loaded):
    async def send_all(url: str) -> list[str | None]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            return [await send(http, attack) for attack in attacks(100).values()]

    engine = load_engine("06")(loaded, kv_memory="4M")  # a short context, so that the test is not long
    with openai_server("06", loaded, engine=engine) as service:
        assert not any(asyncio.run(send_all(service.url)))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--stage", "2"], "give --stage 03 or a later one"),
        (["--stage", "99"], "there is no stage '99'"),
        (["--minutes", "0"], "at least --minutes 0.1 and --clients 1"),
        (["--clients", "0"], "at least --minutes 0.1 and --clients 1"),
        (["--options=--no-such-option"], "the server of 06 did not start: .*unrecognized arguments: --no-such-option"),
    ],
)
def test_what_cannot_be_soaked_is_told_in_a_sentence(options, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        main(options)
