"""The recording and the picture that each lesson shows: they are there, small, and play in the browser of a reader."""

import pytest

from common.inspector.recording import read_recording
from common.inspector.scenes import SCENES
from common.inspector.view import VERSION
from common.stages import stage_folder
from tests.helpers.watching import STORE, Page


@pytest.mark.parametrize("stage", SCENES)
def test_each_lesson_shows_the_page_and_links_a_recording(stage):
    folder = stage_folder(stage)
    lesson = (folder / "README.md").read_text(encoding="utf-8")
    assert "(results/watch.png)" in lesson and "(results/watch.html)" in lesson and f"course.py watch {stage}" in lesson
    assert (folder / "results" / "watch.png").read_bytes().startswith(b"\x89PNG")
    [[hello, *updates]] = read_recording(folder / "results" / "watch.html")
    assert hello["version"] == VERSION and hello["name"] == folder.name
    assert sum(len(update["steps"]) for update in updates) == updates[-1]["stats"]["steps"] > 20


@pytest.mark.browser
@pytest.mark.parametrize("stage", SCENES)
def test_a_lessons_recording_plays(chromium, stage):
    """To its last moment, without a network, and without an error in any panel."""
    path = stage_folder(stage) / "results" / "watch.html"
    [[_, *updates]] = read_recording(path)
    page = Page(chromium, path.as_uri(), offline=True)
    page.has("document.querySelector('.player')")
    page.evaluate("inspector.clock.show(1e12)")
    page.drawn()
    requests = {row["n"] for update in updates for row in update["requests"]}
    assert page.evaluate(f"[{STORE}.columns, {STORE}.requests.size]") == [updates[-1]["stats"]["steps"], len(requests)]
    assert page.query_selector(".card") and page.text_content(".sums")
    assert all(url.startswith(("file:", "data:")) for url in page.asked)
    page.close()
