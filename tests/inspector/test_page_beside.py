"""Two engines on one page, as `course.py watch 03 04` starts them: two processes, one load, one recording."""

import signal
import subprocess
import sys

import pytest

from common.inspector.recording import read_recording
from common.serving.background import free_port
from common.stages import ROOT
from tests.helpers.watching import Page

pytestmark = pytest.mark.browser
QUESTION = "Explain KV cache in one sentence."
TILES = "[...document.querySelectorAll('.engine')].map((engine) => engine.querySelector('.tile dd').textContent)"
BURSTS = """inspector.stores.map((store) => {
  const all = [...store.requests.values()];
  const tokens = all.reduce((sum, one) => sum + one.tokens.length, 0);
  const seconds = Math.max(...all.map((one) => one.finished)) - Math.min(...all.map((one) => one.arrived));
  return `${Math.round(tokens / seconds).toLocaleString("en")}${tokens} in `;
})"""


def test_two_engines_get_the_same_load_and_are_recorded_together(chromium, tmp_path):
    port, recording = free_port(), tmp_path / "both.html"
    command = [sys.executable, "-m", "common.inspector", "03", "04", "--port", str(port), "--no-browser"]
    command += ["--record", str(recording)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert f"http://127.0.0.1:{port}/watch" in process.stdout.readline()
            page = Page(chromium, f"http://127.0.0.1:{port}/watch")
            stores = "inspector.stores"
            page.has(f"{stores}.filter((store) => store?.moments.length).length === 2")  # in whichever order they come
            assert page.evaluate(f"{stores}.map((store) => store.hello.kind)") == ["buffers", "slots"]
            assert [one.text_content()[:2] for one in page.query_selector_all(".engine-name")] == ["03", "04"]
            page.send(QUESTION, 24, times=6)
            ended = "[...store.requests.values()].filter((one) => one.finish).length"
            page.has(f"{stores}.every((store) => {ended} === 6)")
            most = f"{stores}.map((store) => Math.max(...store.steps.map((step) => step.works.length)))"
            assert page.evaluate(most) == [1, 6]
            said = f"{stores}.map((store) => [...store.requests.values()].map((one) => [one.prompt, one.text]))"
            third, fourth = page.evaluate(said)
            assert third == fourth and {prompt for prompt, _ in third} == {QUESTION}
            page.close()
            late = Page(chromium, f"http://127.0.0.1:{port}/watch")
            late.has(f"inspector.views.filter(Boolean).length === 2 && {stores}.every((store) => store.requests.size)")
            late.fits_a_phone()
            shown, bursts = late.evaluate(TILES), late.evaluate(BURSTS)  # not what is left of the last seconds
            assert all(tile.startswith(burst) for tile, burst in zip(shown, bursts, strict=True)), (shown, bursts)
            assert late.evaluate("inspector.views.map((view) => view.timeline.drawn.decode > 0)") == [True, True]
            assert late.evaluate("new Set(inspector.views.map((view) => view.element.offsetLeft)).size") == 1
            late.close()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 0
    engines = read_recording(recording)
    assert [hello["kind"] for hello, *_ in engines] == ["buffers", "slots"]
    for _, *updates in engines:
        assert sum("finish" in row for update in updates for row in update["requests"]) == 6
    page = Page(chromium, recording.as_uri(), offline=True)
    page.has("inspector.views.length === 2")
    page.evaluate("inspector.clock.show(1e12)")
    page.has("document.querySelectorAll('.engine').length === 2")
    page.drawn()
    page.close()
