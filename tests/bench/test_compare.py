"""`compare`: what is refused, what may share an axis, which machine is odd and why; the page, in a real browser."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from common.bench.compare import __main__ as command
from common.bench.compare import sources
from common.bench.compare.panels import Group, odd_ones
from common.bench.compare.sources import collect
from common.bench.suite import write_json
from common.stages import stage_folders
from tests.helpers.watching import Page, browser

FILE = Path(__file__).with_name("compared.json")  # as `bench --quick` writes it, small and with known figures:
SLOWEST = 50.0  # tokens a second of stage 01
GAIN, BATCHING = 4.0, 5.0  # ratios of stages 02 and 04


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Nothing is measured here, and nothing committed."""
    monkeypatch.setattr(sources, "HERE", tmp_path / "results")
    monkeypatch.setattr(sources, "COMMITTED", tmp_path / "committed")
    monkeypatch.setattr(sources, "stage_folders", lambda: [])


def write_results(path: Path, **variation: Any) -> Path:
    """Write the results of one machine; variation: as of `results`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results(**variation)))
    return path


def results(
    gain=GAIN, batching=BATCHING, drift=1.1, doubt: str | None = None, size_set="quick", **machine: Any
) -> dict[str, Any]:
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


def group_of(*paths) -> Group:
    found, refused = collect(paths)
    assert refused == [] and len({each.group for each in found}) == 1
    return Group(found)


def columns(group: Group, kind: str) -> dict:
    """Return a panel's figures by column."""
    [panel] = [panel for panel in group.panels() if panel.kind == kind]
    return {f"{column.chart} {column.label}".strip(): column.figures for column in panel.columns}


def medians(figures: list) -> list[float]:
    return [figure["median"] for figure in figures]


# ---- What may be compared ----


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not JSON", "cannot be read as JSON"),
        ("[]", "cannot be read as JSON"),
        ('{"results": []}', "is no results file of this course"),
        (json.dumps(results() | {"schema": 0}), "has version 0, and this course reads version 1"),
        (json.dumps(results() | {"benchmarks": {"02_kv_cache": {"ratio": {"median": 2}}}}), "is damaged .KeyError"),
        (json.dumps(results() | {"machine": {}}), "is damaged .KeyError"),
        (json.dumps(results() | {"benchmarks": {}}), "holds no headline yet"),
        (json.dumps(results()).replace('"tokens_per_second"', '"tokens"'), "is damaged .KeyError: 'tokens_per_second'"),
        (json.dumps(results()).replace('"min": 3.8', '"min": -1'), "is damaged .ValueError: figures that are not"),
        (json.dumps(results()).replace('"ttft_ms": {"median"', '"ttft_ms": {"mean"'), "is damaged .KeyError: 'median'"),
        (json.dumps(results()).replace("[[100.0, 125.0], ", "["), "is damaged .ValueError: stages with 1, 2 repeats"),
    ],
)
def test_a_file_that_cannot_be_compared_is_left_out_with_a_sentence(tmp_path, text, sentence):
    (tmp_path / "old.json").write_text(text)
    found, [said] = collect([tmp_path / "old.json", write_results(tmp_path / "good.json")])
    assert [each.label for each in found] == ["good"] and re.search(f"old.json.*{sentence}", said)


def test_a_missing_file_and_nothing_measured_are_said(tmp_path, capsys):
    assert command.main([str(tmp_path / "none.json")]) == 1 and "none.json cannot be read" in capsys.readouterr().err
    assert command.main([]) == 1 and "bench --quick" in capsys.readouterr().err


@pytest.mark.parametrize("fewer", [False, True])
def test_the_same_measurements_twice_are_one_machine(tmp_path, fewer):
    write_results(tmp_path / "anna.json")
    some = results()
    if fewer:  # as in a results file beside the documents of all stages
        del some["benchmarks"]["bench"]
    (tmp_path / "copy.json").write_text(json.dumps(some))
    found, [said] = collect([tmp_path])
    assert [each.label for each in found] == ["anna"] and "copy.json holds the same measurements" in said


@pytest.mark.parametrize(
    ("benchmark", "field", "value", "said"),
    [
        ("02_kv_cache", "compared_answer", 96, "compared_answer is 96, and 192 in a"),
        ("04_continuous_batching", "slots", 4, "slots is 4, and missing in a"),
        ("04_continuous_batching", "objectives", {"longest_gap": 0.05}, None),
    ],
)
def test_entries_of_other_work_are_left_out_and_the_rest_compared(tmp_path, benchmark, field, value, said):
    """What was noted besides is no other work: the same requests of the same stages were measured."""
    paths = [write_results(tmp_path / f"{name}.json", gain=gain) for name, gain in (("a", 3), ("b", 4), ("c", 5))]
    changed = json.loads(paths[2].read_text())
    changed["benchmarks"][benchmark]["sizes"][field] = value
    paths[2].write_text(json.dumps(changed))
    found, refused = collect(paths)
    assert refused == ([f"{paths[2]}: {benchmark} is left out, which measured other work: {said}"] if said else [])
    assert (benchmark in found[2].entries) == (said is None) and len(found[2].entries) == 3 - (said is not None)


def test_a_folder_stands_for_its_results_files_and_none_for_what_is_measured_here_and_committed(tmp_path):
    write_results(tmp_path / "results" / "mine.json")
    write_results(tmp_path / "committed" / "a" / "cpu-amd-epyc-2-cores-quick.json", gain=2.0)
    write_results(tmp_path / "committed" / "cpu-amd-epyc-2-cores-quick.json", gain=3.0)
    write_json(tmp_path / "committed" / "document.json", {"benchmark": "02_kv_cache"})
    found, refused = collect([])
    assert sorted(each.label for each in found) == ["AMD EPYC, 2 CPU cores", "mine"] and refused == []
    found, _ = collect([tmp_path / "committed", tmp_path / "committed" / "a"])
    assert [each.label for each in found] == ["AMD EPYC, 2 CPU cores (1)", "AMD EPYC, 2 CPU cores (2)"]
    write_results(tmp_path / "whole" / "cpu-amd-epyc-2-cores.json", gain=3.0, size_set="full")
    found, _ = collect([tmp_path / "committed", tmp_path / "whole"])
    assert {each.label for each in found} == {"AMD EPYC, 2 CPU cores"}, "they share no axis"


def test_cpu_and_gpu_quick_and_full_never_share_an_axis(tmp_path):
    write_results(tmp_path / "laptop.json")
    write_results(tmp_path / "big.json", gain=2.0, device="cuda", gpu="NVIDIA H200", dtype="bfloat16")
    write_results(tmp_path / "full.json", gain=3.0, size_set="full")
    assert len({each.group for each in collect([tmp_path])[0]}) == 3


def test_results_of_one_model_can_be_asked_for(tmp_path, capsys):
    paths = [
        str(write_results(tmp_path / f"{model}.json", gain=gain, model=model))
        for model, gain in (("a", 2.0), ("b", 3.0))
    ]
    assert command.main([*paths, "--model", "b", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert "b model" in page and "a model" not in page
    assert command.main([*paths, "--model", "c", "--out", str(tmp_path)]) == 1
    assert "no results of the model 'c', only of: a, b" in capsys.readouterr().err


def test_the_documents_of_all_stages_are_the_committed_results_of_a_machine(monkeypatch):
    monkeypatch.undo()
    committed = [len(results.entries) for results in sources.committed_documents() if results.course]
    assert len(stage_folders()) + 1 in committed


# ---- What is drawn ----


def test_figures_of_one_machine_have_spread_and_noise(tmp_path):
    group = group_of(write_results(tmp_path / "a.json", gain=4.0, doubt="the machine drifted"))
    cache, batching = columns(group, "gains")["a"]
    assert (cache["min"], cache["median"], cache["max"]) == pytest.approx((3.8, 4.0, 4.2))
    assert cache["doubt"] == "the machine drifted" and batching["doubt"] is None
    assert {name: medians(figures) for name, figures in columns(group, "stairs").items()} == {
        "a 1 client": [1, 2, 2], "a 32 clients": [1, 2.5, 10],
    }  # fmt: skip
    assert medians(columns(group, "absolute")["Output tokens/s, 32 clients a"]) == [
        SLOWEST,
        2.5 * SLOWEST,
        10 * SLOWEST,
    ]


def test_the_lead_has_a_factor_for_each_of_two_machines(tmp_path):
    slow = write_results(tmp_path / "one.json", cpu_cores=1)
    group = group_of(slow, write_results(tmp_path / "two.json", batching=10.0))
    assert command.lead(group) == "Stage 04 gives 32 clients 10 and 20 times the tokens per second of stage 01."


def test_a_step_that_the_machines_own_drift_could_have_made_has_no_factor(tmp_path):
    group = group_of(write_results(tmp_path / "busy.json", drift=3.0))
    marked = [figure.get("step") for figure in columns(group, "stairs")["busy 32 clients"]]
    assert marked == [None, "", "4×"], "a step of 2.5 times is no more than the drift"


def test_the_odd_one_of_a_class_has_what_differs_about_it(tmp_path):
    paths = [write_results(tmp_path / f"s{i}.json", gain=4 + i / 20) for i in range(5)]
    facts = {"cpu_cores": 1, "dtype": "bfloat16", "copy_bytes_per_second": 5e9}
    group = group_of(*paths, write_results(tmp_path / "odd.json", gain=1.2, drift=2.0, **facts))
    assert group.odd == {5: ["02 KV cache: 1.2 times, 0.3 of the median"]} and group.is_class
    assert group.differences(group.members[5]) == [
        "1 core (others: 2 cores)", "bfloat16 (others: float32)", "memory bandwidth 0.2 times the median",
        "busy: its own speed changed by 100% meanwhile",
    ]  # fmt: skip
    assert medians(columns(group, "gains")["median of the class"]) == pytest.approx([4.075, 5])
    assert medians(columns(group, "stairs")["median, 32 clients"]) == [1, 2.5, 10]
    assert "in the median of 6 machines" in command.lead(group)
    few = group_of(paths[0], paths[1], write_results(tmp_path / "odd.json", gain=1.2))
    assert few.odd == {} and "median of the class" not in columns(few, "gains")
    assert odd_ones({0: 4.0, 1: 4.2, 2: 3.9, 3: 4.1}) == {}
    assert odd_ones({0: 4.0, 1: 4.2, 2: 3.9, 3: 4.1, 4: 40.0}) == {4: pytest.approx(40 / 4.1)}


# ---- The page ----


@pytest.mark.browser
def test_the_page_fits_is_light_or_dark_asks_for_nothing_and_leads_to_the_json(tmp_path):
    """A class of nine with an odd one, more than there are colours, and a GPU, on a phone and on a desk."""
    for i in range(9):
        odd = {"gain": 1.5, "drift": 1.9, "doubt": "the machine drifted by 90%", "cpu_cores": 1} if i == 0 else {}
        write_results(tmp_path / f"student {i}.json", **{"gain": 4 + i / 50} | odd)
    write_results(tmp_path / "gpu.json", device="cuda", gpu="NVIDIA H200", dtype="bfloat16")
    (tmp_path / "<b>old.json").write_text("{}")
    assert command.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    ink = {"light": "rgb(34, 34, 34)", "dark": "rgb(233, 235, 238)"}
    with browser() as chromium:
        for width, scheme, other in ((390, "dark", "light"), (1280, "light", "dark")):
            page = Page(chromium, (tmp_path / "out" / "index.html").as_uri(), color_scheme=scheme)
            page.on("console", lambda message, errors=page.errors: errors.append(message.text))
            page.set_viewport_size({"width": width, "height": 900})
            page.reload()
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate("[...document.querySelectorAll('h2')].map((one) => one.textContent.slice(0, 3))") == [
                "GPU", "CPU",
            ]  # fmt: skip
            drawn = "[...document.querySelectorAll('[data-kind]:has(svg)')].map((one) => one.dataset.kind)"
            assert page.evaluate(drawn) == 2 * ["gains", "stairs", "absolute"]
            for expected in (scheme, other):
                assert page.evaluate("getComputedStyle(document.querySelector('svg text')).fill") == ink[expected]
                page.select_option("select", other)
            alerts = page.text_content(".alert >> nth=0") + page.text_content(".alert >> nth=1")
            assert "0.json: its own speed changed by 90%" in alerts and "<b>old.json is no results file" in alerts
            assert page.text_content("[data-kind=gains] tr:has-text('student 0') td >> nth=0").startswith("1.5 ?")
            assert "student 0 02 KV cache" in (said := page.text_content(".odd")) and "1 core (others: 2 cores)" in said
            page.click("[data-kind=gains] a >> text=student 0")
            page.click(":target summary")
            behind = page.text_content(":target pre")
            assert '"commit": "0123456789"' in behind and '"doubt": "the machine drifted by 90%"' in behind
            page.close()
