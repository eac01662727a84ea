"""The page of stage 08, with worker processes: one is killed with a click, and its stream ends right."""

import pytest

from common.inspector.load import chat_tokens
from common.sampling import SamplingParams
from common.stages import load_engine
from tests.helpers.serving_stage_03 import wait_until
from tests.helpers.watching import STORE, Page, watching

pytest.importorskip("ray", reason="needs the package ray")
pytestmark = [pytest.mark.ray, pytest.mark.browser]
STORY = "Tell me a story about a fox that lasts nine days."
TOKENS = 500


def test_a_killed_workers_stream_goes_on(loaded, chromium):
    prompt = chat_tokens(loaded.tokenizer, STORY)
    [expected] = load_engine("06")(loaded, kv_memory="8M").generate([prompt], SamplingParams(max_tokens=TOKENS))
    with watching("08", loaded, workers="ray", kv_memory="16M", num_draft_tokens=0) as server:
        page = Page(chromium, server.page_url)
        page.has(f"inspector.views[0] && {STORE}.moments.length")
        assert page.is_hidden("text=Pause"), "workers have loops of their own"
        page.send(STORY, TOKENS)
        page.has(f"{STORE}.requests.get(0)?.tokens.length > 10")
        page.click("text=Kill worker 1")
        page.has("document.querySelector('.card[data-state=length], .card[data-state=stop]')")
        assert page.text_content(".card .answer") == expected.text
        assert page.evaluate(f"{STORE}.at(1e9).stats.workers_lost") == 1
        assert page.evaluate(f"{STORE}.requests.get(0).works.some((work) => work.phase === 'again')")
        wait_until(lambda: all(handle.up for handle in server.engine.handles), seconds=120)
        page.has(f"{STORE}.moments.at(-1).memory.workers.every((worker) => worker.up)")
        page.close()
