"""The page of `compare` in a real browser, opened from its file: every panel at every width, light and dark."""

import pytest

from common.bench.compare import __main__ as command
from tests.helpers.results_files import write_results
from tests.helpers.watching import Page, browser

pytestmark = pytest.mark.browser
WIDTHS = (390, 1280, 1920)
KINDS = ["gains", "stairs", "machines", "absolute"]


@pytest.fixture(scope="module")
def chromium():
    with browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict:
    """The page of one machine, of two, and of a class of twelve with an odd one; URLs by their number of machines."""
    folder = tmp_path_factory.mktemp("compare")
    urls = {}
    for count in (1, 2, 12):
        files = [write_results(folder / f"{count}" / f"student {i}.json", gain=4 + i / 50) for i in range(count)]
        write_results(files[0], gain=1.5, batching=1.2, drift=1.9, doubt="the machine drifted by 90%", cpu_cores=1)
        if count == 2:
            write_results(folder / "2" / "gpu.json", device="cuda", gpu="NVIDIA H200", dtype="bfloat16")
            (folder / "2" / "old.json").write_text("{}")
        out = folder / f"out {count}"
        assert command.main([str(folder / f"{count}"), "--out", str(out)]) == 0
        urls[count] = (out / "index.html").as_uri()
    return urls


@pytest.fixture
def open_page(chromium, pages):
    """Open the page of `count` machines; after the test it had no errors and has asked for nothing but itself."""
    opened = []

    def open_page(count: int, width: int = 1280, **options) -> Page:
        page = Page(chromium, pages[count], **options)
        opened.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.has("document.documentElement.dataset.ready")
        return page

    yield open_page
    for page in opened:
        page.close()
        assert all(url.startswith(("file:", "data:")) for url in page.asked), page.asked


@pytest.mark.parametrize(("width", "scheme"), [*((width, "light") for width in WIDTHS), (WIDTHS[0], "dark")])
@pytest.mark.parametrize("count", [1, 2, 12])
def test_every_panel_is_drawn_and_fits(open_page, count, width, scheme):
    page = open_page(count, width, color_scheme=scheme)
    expected = [kind for kind in KINDS if kind != "machines" or count > 1]
    last = "[...document.querySelectorAll('.group')].at(-1)"  # the CPUs, where there is a GPU
    kinds = page.evaluate(f"[...{last}.querySelectorAll('.panel[data-kind]')].map((one) => one.dataset.kind)")
    assert kinds == expected
    page.has("[...document.querySelectorAll('.panel[data-kind]')].every((one) => one.querySelector('svg'))")
    marks = f"document.querySelectorAll('.panel[data-kind=gains] .row[data-stage=\"02\"] .mark').length >= {count}"
    page.has(marks)
    page.has(f"document.documentElement.scrollWidth <= {width}")  # drawings follow a new width a frame later
    overflowing = (
        "[...document.querySelectorAll('svg text')].filter((one) => one.getBoundingClientRect().right > innerWidth)"
    )
    assert page.evaluate(f"{overflowing}.map((one) => one.textContent)") == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(17, 19, 22)") == (scheme == "dark")


def test_a_figure_is_followed_to_its_json(open_page):
    page = open_page(2)
    page.click(".group:last-child .panel[data-kind=gains] .row[data-stage='02'] .mark >> nth=0")
    text = page.text_content("dialog")
    assert "student 0.json" in text and '"commit": "0123456789"' in text and "02_kv_cache" in text
    assert "drifted by 90%" in text and "predicted" in text and "torch 2.13.0" in text
    page.keyboard.press("Escape")
    page.has("!document.querySelector('dialog').open")
    page.focus(".group:last-child .panel[data-kind=stairs] .mark >> nth=1")
    page.keyboard.press("Enter")
    page.has(
        "document.querySelector('dialog').open && document.querySelector('dialog').textContent.includes('student 1')"
    )


def test_cpu_and_gpu_stand_apart_and_refused_files_are_said(open_page):
    page = open_page(2)
    assert page.evaluate("[...document.querySelectorAll('h2')].map((one) => one.textContent.split(',')[0])") == [
        "GPU: the quick benchmark", "CPU: the quick benchmark",
    ]  # fmt: skip
    assert "old.json is no results file" in page.text_content(".refused")
    assert "student 0: its own speed changed by 90%" in page.text_content("header ~ .drifted")


def test_a_class_shows_its_odd_one_and_singles_it_out(open_page):
    page = open_page(12)
    assert "student 0" in page.text_content(".odd") and "1 core (others: 2 cores)" in page.text_content(".odd")
    page.click(".chip >> nth=0")
    page.has("document.querySelectorAll('.panel[data-kind=gains] .row[data-stage=\"02\"] .dim').length === 11")
    page.click(".chip >> nth=0")
    page.has("document.querySelectorAll('.dim').length === 0")
    assert len(page.query_selector_all(".panel[data-kind=stairs] .multiples > *")) == 12


def test_the_colours_can_be_chosen(open_page):
    page = open_page(1, color_scheme="light")
    for expected in ("light", "dark", "light"):  # chosen light, chosen dark, as the system has it
        page.click(".top button")
        assert page.evaluate("document.documentElement.dataset.theme") == expected
