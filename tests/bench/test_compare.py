"""`compare`: what is refused, what may share an axis, which machine is odd and why; the page, in a real browser."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from common.bench.compare import __main__ as command
from common.bench.compare import sources
from common.stages import stage_folders
from tests.helpers.watching import Page, browser

FILE = Path(__file__).with_name("compared.json")  # a small file as `bench --quick` writes it, with known figures:
GAIN, BATCHING = 4.0, 5.0  # ratios of stages 02 and 04; stage 01 has 50 tokens a second
GPU = {"device": "cuda", "gpu": "NVIDIA H200", "dtype": "bfloat16"}


@pytest.fixture
def compare(tmp_path, capsys, monkeypatch):
    """Run the command, without its pictures; return the page, "" if it writes none, and what it says.

    There are no results of this machine, and no committed ones, but those that a test writes.
    """
    for module in (command, sources):
        monkeypatch.setattr(module, "HERE", tmp_path / "results")
    monkeypatch.setattr(sources, "COMMITTED", tmp_path / "committed")
    monkeypatch.setattr(sources, "stage_folders", lambda: [])
    monkeypatch.setattr(command, "draw", lambda panel: "")

    def run(*arguments) -> tuple[str, str]:
        page = tmp_path / "page" / "index.html"
        page.unlink(missing_ok=True)
        status = command.main([*map(str, arguments), "--out", str(page.parent)])
        assert status == (not page.exists())
        return page.read_text() if page.exists() else "", capsys.readouterr().err

    return run


def write(path: Path, document: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def results(gain=GAIN, batching=BATCHING, drift=1.1, doubt=None, size_set="quick", **machine: Any) -> dict[str, Any]:
    """Return FILE with these ratios of stages 02 and 04, doubt about the first; machine: facts of its own."""
    document = json.loads(FILE.read_text())
    document |= {"size_set": size_set, "drift": drift, "machine": document["machine"] | machine}
    slower, faster = ("01_naive", gain / GAIN), ("04_continuous_batching", batching / BATCHING)
    for entry, (side, factor) in zip(document["benchmarks"].values(), (slower, faster, faster), strict=True):
        entry |= {"ratio": scaled(entry["ratio"], factor), "drift": dict.fromkeys(entry["drift"], drift)}
        for figures in (entry["sides"], entry["figures"]):
            figures[side] = scaled(figures[side], factor)
    document["benchmarks"]["02_kv_cache"]["doubt"] = doubt
    return document


def scaled(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: scaled(each, factor) for key, each in value.items()}
    return [scaled(each, factor) for each in value] if isinstance(value, list) else value * factor


def text(html: str) -> str:
    return " ".join(re.sub("<[^>]+>", " ", html).split())


def table(page: str, kind: str) -> dict[str, list[str]]:
    """Return the cells of a table by the label of their row, of the first panel of this kind."""
    [found, *_] = re.findall(rf'data-kind="{kind}".*?</table>', page, re.DOTALL)
    rows = [list(map(text, re.split("<t[hd]>", row)[1:])) for row in found.split("<tr>")[2:]]
    return {label: cells for label, *cells in rows}


def labels(page: str) -> list[str]:
    return [text(label) for label in re.findall(r'<div id="[^"]*"><h3>(.*?)</h3>', page)]


# ---- What may be compared ----


def test_files_that_cannot_be_compared_are_left_out_with_a_sentence(tmp_path, compare):
    good = json.dumps(results())
    refused = {
        "not JSON": "cannot be read as JSON",
        '{"results": []}': "is no results file of this course",
        json.dumps(results() | {"schema": 0}): "has version 0, and this course reads version 1",
        json.dumps(results() | {"machine": {}}): "is damaged (KeyError",
        json.dumps(results() | {"benchmarks": {}}): "holds no headline yet",
        good.replace('"ttft_ms": {"median"', '"ttft_ms": {"mean"'): "is damaged (KeyError: 'median')",
        good.replace('"min": 3.8', '"min": -1'): "is damaged (ValueError: figures that are not positive)",
    }
    for number, content in enumerate(refused):
        (tmp_path / f"{number}.json").write_text(content)
    write(tmp_path / "good.json", results())
    page, said = compare(tmp_path, tmp_path / "missing.json")
    assert labels(page) == ["good"] and "missing.json cannot be read" in said
    shown = text(page).replace("&#39;", "'")
    assert all(f"{number}.json {sentence}" in shown for number, sentence in enumerate(refused.values()))
    page, said = compare()
    assert page == "" and "bench --quick" in said, "nothing is measured yet"


def test_the_same_measurements_twice_are_one_machine(tmp_path, compare):
    write(tmp_path / "anna.json", results())
    fewer = results()
    del fewer["benchmarks"]["bench"]  # A results file may hold fewer benchmarks than another.
    write(tmp_path / "copy.json", results())
    write(tmp_path / "fewer.json", fewer)
    page, said = compare(tmp_path)
    assert labels(page) == ["anna"] and said.count("holds the same measurements as") == 2


def test_entries_of_other_work_are_left_out_and_the_rest_compared(tmp_path, compare):
    """A size in NOTED does not change the work. The first of three files differs from the other two."""
    changed = results(gain=3)
    changed["benchmarks"]["02_kv_cache"]["sizes"]["compared_answer"] = 96
    changed["benchmarks"]["04_continuous_batching"]["sizes"]["objectives"] = {"longest_gap": 0.05}
    for name, document in (("a", changed), ("b", results()), ("c", results(gain=5))):
        write(tmp_path / f"{name}.json", document)
    page, said = compare(tmp_path)
    assert "a.json: 02_kv_cache is left out, which measured other work: another compared_answer" in said
    assert [cell[:1] for cell in table(page, "gains")["a"]] == ["", "5"] and table(page, "stairs")


def test_a_folder_stands_for_its_results_files_and_none_for_what_is_measured_here_and_committed(tmp_path, compare):
    for folder, gain in (("results", 4.0), ("committed", 3.0), ("committed/a", 2.0)):
        write(tmp_path / folder / "mine.json", results(gain=gain))
    write(tmp_path / "results" / "document.json", {"benchmark": "02_kv_cache"})
    page, said = compare()
    assert labels(page) == ["mine", "mine (2)"] and said == "" and page.count(", this machine") == 1
    write(tmp_path / "whole" / "mine.json", results(gain=5.0, size_set="full"))
    write(tmp_path / "whole" / "big.json", results(gain=2.0, **GPU))
    page, _ = compare(tmp_path / "committed", tmp_path / "whole")
    assert sorted(labels(page)) == ["big", "mine", "mine"] and page.count("<h2>") == 3, "they share no axis"


def test_the_documents_of_all_stages_are_the_committed_results_of_a_machine():
    committed = [len(results.entries) for results in sources.committed_documents() if results.course]
    assert len(stage_folders()) + 1 in committed


# ---- What is drawn ----


def test_figures_of_one_machine_have_spread_and_noise(tmp_path, compare):
    page, _ = compare(write(tmp_path / "a.json", results(doubt="the machine drifted")))
    cache, batching = table(page, "gains")["a"]
    assert cache == "4 ? 3.8 to 4.2 4.2 → 1.05 s" and batching.startswith("5 4") and "?" not in batching
    assert "? 02 KV cache, a: the machine drifted." in text(page)
    stairs, absolute = table(page, "stairs"), table(page, "absolute")
    found = stairs["a Times stage 01, 1 client"], stairs["a Times stage 01, 32 clients"]
    found += (absolute["a Output tokens/s, 32 clients"],)
    medians = [[cell.split()[0] for cell in cells] for cells in found]
    assert medians == [["1", "2", "2"], ["1", "2.5", "10"], ["50", "125", "500"]]
    assert "Stage 04 gives 32 clients 10 times the tokens per second of stage 01." in page


def test_the_odd_one_of_a_class_has_what_differs_about_it(tmp_path, compare):
    paths = [write(tmp_path / f"s{i}.json", results(gain=4 + i / 20)) for i in range(5)]
    facts = {"cpu_cores": 1, "dtype": "bfloat16", "copy_bytes_per_second": 5e9}
    odd = write(tmp_path / "odd.json", results(gain=1.2, batching=10.0, drift=2.0, **facts))
    page, said = compare(*paths, odd)
    assert "odd.json: its own speed changed by 100% while it was measured." in said
    sentences = [text(line) for line in page.splitlines() if line.startswith("<li><b>")]
    assert sentences == [
        "odd 02 KV cache: 1.2 times, 0.3 of the median; 04 continuous batching: 10.0 times, 2.0 of the median. What "
        "differs: CPU cores 1 (others: 2); dtype bfloat16 (others: float32); memory bandwidth 0.2 times the median."
    ]
    assert table(page, "gains")["median of the class"] == ["4.07", "5"]
    assert "10 times the tokens per second of stage 01, in the median of 6 machines" in page
    few, _ = compare(*paths[:2], odd)
    assert "odd ones" not in few and "median of the class" not in table(few, "gains")
    alike, _ = compare(*paths)
    assert "No machine is far from the median of the class." in alike


# ---- The page ----


@pytest.mark.browser
def test_the_page_fits_is_light_or_dark_asks_for_nothing_and_leads_to_the_json(tmp_path):
    """A class of nine with an odd one, more than there are colours, and a GPU, on a phone and on a desk."""
    for i in range(9):
        odd = {"gain": 1.5, "drift": 1.9, "doubt": "the machine drifted by 90%", "cpu_cores": 1} if i == 0 else {}
        write(tmp_path / f"student {i}.json", results(**{"gain": 4 + i / 50} | odd))
    write(tmp_path / "gpu.json", results(**GPU))
    (tmp_path / "<b>old.json").write_text("{}")
    assert command.main([str(tmp_path), "--out", str(tmp_path / "page")]) == 0
    filters = {"light": "none", "dark": "invert(1) hue-rotate(180deg)"}
    with browser() as chromium:
        for width, scheme, other in ((390, "dark", "light"), (1280, "light", "dark")):
            page = Page(chromium, (tmp_path / "page" / "index.html").as_uri(), color_scheme=scheme)
            page.on("console", lambda message, errors=page.errors: errors.append(message.text))
            page.set_viewport_size({"width": width, "height": 900})
            page.reload()
            assert page.evaluate("document.documentElement.scrollWidth") == width
            drawn = "[...document.querySelectorAll('[data-kind]:has(svg)')].map((one) => one.dataset.kind)"
            assert page.evaluate(drawn) == 2 * ["gains", "stairs", "absolute"]
            for expected in (scheme, other):
                assert page.evaluate("getComputedStyle(document.querySelector('svg')).filter") == filters[expected]
                page.select_option("select", other)
            assert "<b>old.json is no results file" in page.text_content(".alert >> nth=1")
            page.click("[data-kind=gains] a >> text=student 0")
            page.click(":target summary")
            behind = page.text_content(":target pre")
            assert '"commit": "0123456789"' in behind and '"doubt": "the machine drifted by 90%"' in behind
            page.close()
