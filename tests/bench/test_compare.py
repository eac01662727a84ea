"""`compare`: what is refused, what may share an axis, which machine is odd and why; the page's data, no browser."""

import json
import re

import pytest

from common.bench.compare import __main__ as command
from common.bench.compare import sources
from common.bench.compare.classroom import odd_ones
from common.bench.compare.figures import compose
from common.bench.compare.sources import collect
from common.bench.suite import write_json
from tests.helpers.results_files import SLOWEST, STAGES, results, write_results


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Nothing is measured here, and nothing committed."""
    monkeypatch.setattr(sources, "HERE", tmp_path / "results")
    monkeypatch.setattr(sources, "COMMITTED", tmp_path / "committed")
    monkeypatch.setattr(sources, "stage_folders", lambda: [])


def group_of(*paths) -> dict:
    found, refused = collect(paths)
    assert refused == []
    [group] = compose(found, refused)["groups"]
    return group


def panel(group: dict, kind: str) -> dict:
    [found] = [panel for panel in group["panels"] if panel["kind"] == kind]
    return found


# ---- What may be compared ----


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not JSON", "cannot be read as JSON"),
        ('{"results": []}', "is no results file of this course"),
        (json.dumps(results() | {"schema": 0}), "has version 0, and this course reads version 1"),
        (json.dumps(results() | {"benchmarks": {"02_kv_cache": {"ratio": {"median": 2}}}}), "is damaged .KeyError"),
        (json.dumps(results() | {"machine": {}}), "is damaged .KeyError"),
        (json.dumps(results() | {"benchmarks": {}}), "holds no headline yet"),
        (json.dumps(results()).replace('"tokens_per_second"', '"tokens"'), "is damaged .KeyError: 'tokens_per_second'"),
        (json.dumps(results()).replace('"min": 3.8', '"min": -1'), "is damaged .ValueError: a headline that is not"),
    ],
)
def test_a_file_that_cannot_be_compared_is_left_out_with_a_sentence(tmp_path, text, sentence):
    (tmp_path / "old.json").write_text(text)
    good = write_results(tmp_path / "good.json")
    found, refused = collect([tmp_path / "old.json", good])
    assert [each.label for each in found] == ["good"]
    [said] = refused
    assert re.search(f"old.json.*{sentence}", said)


def test_a_missing_file_and_nothing_measured_are_said(tmp_path, capsys):
    assert command.main([str(tmp_path / "none.json")]) == 1 and "none.json cannot be read" in capsys.readouterr().err
    assert command.main([]) == 1 and "bench --quick" in capsys.readouterr().err


@pytest.mark.parametrize("fewer", [False, True])
def test_the_same_measurements_twice_are_one_machine(tmp_path, fewer):
    paths = [write_results(tmp_path / name) for name in ("anna.json", "copy.json")]
    if fewer:  # as in a results file beside the documents of all stages
        some = json.loads(paths[1].read_text())
        del some["benchmarks"]["bench"]
        paths[1].write_text(json.dumps(some))
    found, [said] = collect(paths)
    assert [each.label for each in found] == ["anna"] and "copy.json holds the same measurements" in said


@pytest.mark.parametrize(
    ("benchmark", "field", "value", "said"),
    [
        ("02_kv_cache", "compared_answer", 96, "compared_answer is 96, and 192 in a"),
        ("04_continuous_batching", "slots", 4, "slots is 4, and missing in a"),
        ("04_continuous_batching", "objectives", {"longest_gap": 0.05}, None),
        ("04_continuous_batching", "read_bytes", [], None),
    ],
)
def test_entries_of_other_work_are_left_out_and_the_rest_compared(tmp_path, benchmark, field, value, said):
    """What was noted besides is no other work: the same requests of the same stages were measured."""
    paths = [write_results(tmp_path / f"{name}.json", gain=gain) for name, gain in (("a", 3), ("b", 4), ("c", 5))]
    changed = json.loads(paths[2].read_text())
    changed["benchmarks"][benchmark]["sizes"][field] = value
    paths[2].write_text(json.dumps(changed))
    found, refused = collect(paths)
    left_out = f"{paths[2]}: {benchmark} is left out, which measured other work: {said}"
    assert refused == ([left_out] if said else [])
    assert (benchmark in found[2].entries) == (said is None) and len(found[2].entries) == 3 - (said is not None)


def test_cpu_and_gpu_quick_and_full_never_share_an_axis(tmp_path):
    gpu = {"device": "cuda", "gpu": "NVIDIA H200", "dtype": "bfloat16"}
    paths = [write_results(tmp_path / "laptop.json"), write_results(tmp_path / "big.json", gain=2.0, **gpu)]
    (tmp_path / "full.json").write_text(json.dumps(results(gain=3.0, size_set="full")))
    groups = compose(*collect([*paths, tmp_path / "full.json"]))["groups"]
    assert [group["title"].partition(",")[0] for group in groups] == [
        "CPU: the quick benchmark", "GPU: the quick benchmark", "CPU: the whole benchmark",
    ]  # fmt: skip
    assert [[machine["label"] for machine in group["machines"]] for group in groups] == [["laptop"], ["big"], ["full"]]


def test_a_folder_stands_for_its_results_files(tmp_path):
    write_results(tmp_path / "class" / "anna.json")
    write_results(tmp_path / "class" / "ben.json", gain=3.0)
    (tmp_path / "class" / "ben.partial.json").write_text("{}")
    write_json(tmp_path / "class" / "document.json", {"benchmark": "02_kv_cache"})
    found, refused = collect([tmp_path / "class"])
    assert [each.label for each in found] == ["anna", "ben"] and refused == []


def test_files_named_after_their_hardware_are_called_as_it_is(tmp_path):
    first = write_results(tmp_path / "a" / "cpu-amd-epyc-2-cores-quick.json")
    second = write_results(tmp_path / "b" / "cpu-amd-epyc-2-cores-quick.json", gain=3.0)
    assert [each.label for each in collect([first, second])[0]] == [
        "AMD EPYC, 2 CPU cores (1)",
        "AMD EPYC, 2 CPU cores (2)",
    ]


def test_without_files_this_machines_stand_beside_the_committed_ones(tmp_path):
    write_results(tmp_path / "results" / "mine.json")
    write_results(tmp_path / "committed" / "theirs.json", gain=3.0)
    found, refused = collect([])
    assert {each.label: each.here for each in found} == {"mine": True, "theirs": False} and refused == []


def test_a_document_of_the_same_name_from_another_machine_is_not_taken(tmp_path):
    document = {"benchmark": "bench", "headline": {"sides": "of another run"}, "sides": {"01_naive": {}}}
    write_json(tmp_path / "whole.json", document)
    changed = results(size_set="full")
    changed["benchmarks"]["bench"] |= {"document": "whole.json"}
    del changed["benchmarks"]["bench"]["figures"]
    write_json(tmp_path / "mine.json", changed)
    group = group_of(tmp_path / "mine.json")
    assert [panel["kind"] for panel in group["panels"]] == ["gains"], "the load's figures are not at hand"
    write_json(tmp_path / "whole.json", document | {"headline": changed["benchmarks"]["bench"]})
    entry = json.loads((tmp_path / "mine.json").read_text())["benchmarks"]["bench"]
    assert sources.figures_of(entry, tmp_path / "mine.json") == {"01_naive": {}}


# ---- What is drawn ----


def test_ratios_come_first_with_spread_predictions_and_noise(tmp_path):
    group = group_of(write_results(tmp_path / "a.json", gain=4.0, doubt="the machine drifted"))
    assert [panel["kind"] for panel in group["panels"]] == ["gains", "stairs", "absolute"]
    cache, batching = panel(group, "gains")["rows"]
    [value] = cache["values"]
    assert (value["min"], value["median"], value["max"]) == pytest.approx((3.8, 4.0, 4.2))
    assert value["doubt"] == "the machine drifted" and batching["values"][0]["doubt"] is None
    assert batching["values"][0]["predicted"]["value"] == 16 and value["predicted"]["value"] > 0
    assert [side["name"] for side in value["sides"]] == STAGES[:2]


def test_the_staircase_is_relative_to_the_first_stage(tmp_path):
    alone, together = panel(group_of(write_results(tmp_path / "a.json")), "stairs")["multiples"][0]["series"]
    assert [value["median"] for value in alone["values"]] == [1, 2, 2] and alone["clients"] == 1
    assert [value["median"] for value in together["values"]] == [1, 2.5, 10] and together["clients"] == 32


def test_absolute_figures_have_the_bound_that_the_machines_rates_set(tmp_path):
    charts = panel(group_of(write_results(tmp_path / "a.json")), "absolute")["charts"]
    assert [chart["title"].partition(",")[0] for chart in charts[:3]] == [
        "Throughput", "Time to first token", "Time per output token",
    ]  # fmt: skip
    [series] = charts[3]["series"]
    assert [value["median"] for value in series["values"]] == [SLOWEST, 2.5 * SLOWEST, 10 * SLOWEST]
    assert series["bound"] > 10 * SLOWEST and charts[4]["series"][0]["bound"] is None


def test_machine_against_machine_is_predicted_by_their_rates(tmp_path):
    slow = write_results(tmp_path / "one.json", cpu_cores=1, copy_bytes_per_second=1e10, matmul_flops_per_second=5e10)
    fast = write_results(tmp_path / "two.json", batching=10.0)
    found = panel(group_of(slow, fast), "machines")
    assert [row["values"][0]["median"] for row in found["rows"]] == pytest.approx([1, 1, 2])
    assert [line["value"] for line in found["lines"]] == [2, 2] and "over one" in found["text"]
    doubts = [row["values"][0]["doubt"] for row in found["rows"]]
    assert "drifted by 10%" in doubts[0] and doubts[2] is None, "the first ratio claims nothing, the last claims 2"


def test_every_panel_says_hardware_versions_commit_and_spread(tmp_path):
    group = group_of(*(write_results(tmp_path / f"{name}.json", gain=len(name)) for name in ("a", "bb")))
    for each in group["panels"]:
        assert "a: AMD EPYC, 2 CPU cores, float32; bb: AMD" in each["caption"]
        assert "torch 2.13.0; commit 0123456789" in each["caption"]
        assert "medians of 2 repeats" in each["caption"]
    followed = group["entries"][0]["02_kv_cache"]
    assert followed["file"] == "a.json" and followed["json"]["ratio"]["median"] == pytest.approx(1.0)


def test_the_lead_counts_the_machines_whose_figure_of_this_stage_was_compared(tmp_path):
    paths = [write_results(tmp_path / f"{name}.json", gain=1 + i) for i, name in enumerate("abcde")]
    lead = "Stage 04 gives 32 clients {} of stage 01{}."
    assert compose(*collect(paths))["lead"] == lead.format(
        "10 times the tokens per second", ", in the median of 5 machines"
    )
    both = lead.format("10 and 10 times the tokens per second", " (a; b)")
    assert compose(*collect(paths[:2]))["lead"] == both
    changed = json.loads(paths[1].read_text())
    changed["benchmarks"]["04_continuous_batching"]["sizes"]["slots"] = 4
    paths[1].write_text(json.dumps(changed))
    assert compose(*collect(paths[:2]))["lead"] == lead.format("10 times the tokens per second", " (a)")


def test_drift_is_said_at_the_top_with_the_figures_that_it_touches(tmp_path):
    write_results(tmp_path / "steady.json", gain=3.0)
    busy = json.loads(write_results(tmp_path / "busy.json", drift=1.5).read_text())
    busy["benchmarks"]["02_kv_cache"]["drift"] = busy["benchmarks"]["bench"]["drift"] = {"max": 1.0}
    (tmp_path / "busy.json").write_text(json.dumps(busy))
    page = compose(*collect([tmp_path]))
    [said] = page["drifted"]
    touched = "04 continuous batching by 50% (which measured 5 times)"
    assert said == f"busy: its own speed changed by 50% while it was measured: around {touched}."
    assert page["groups"][0]["remark"].endswith(". Drift: busy 50%"), "on the pictures"


# ---- A class ----


def test_the_odd_one_has_what_differs_about_it(tmp_path):
    paths = [write_results(tmp_path / f"s{i}.json", gain=4 + i / 20) for i in range(5)]
    facts = {"cpu_cores": 1, "dtype": "bfloat16", "copy_bytes_per_second": 5e9}
    group = group_of(*paths, write_results(tmp_path / "odd.json", gain=1.2, drift=2.0, **facts))
    [odd] = group["odd"]
    assert group["machines"][odd["machine"]]["label"] == "odd" and group["is_class"]
    assert odd["far"] == ["02 KV cache: 1.2 times, 0.3 of the median"]
    assert odd["differs"] == [
        "1 core (others: 2 cores)", "bfloat16 (others: float32)", "memory bandwidth 0.2 times the median",
        "busy: its own speed changed by 100% meanwhile",
    ]  # fmt: skip
    assert panel(group, "gains")["rows"][0]["median"] == pytest.approx(4.075)
    assert panel(group, "stairs")["median"][1] == [1, 2.5, 10]


def test_a_class_that_agrees_has_no_odd_ones():
    assert odd_ones({0: 4.0, 1: 4.2, 2: 3.9, 3: 4.1})[1] == {}
    median, odd = odd_ones({0: 4.0, 1: 4.2, 2: 3.9, 3: 4.1, 4: 40.0})
    assert median == 4.1 and odd == {4: pytest.approx(40 / 4.1)}


def test_three_machines_are_no_class(tmp_path):
    group = group_of(*(write_results(tmp_path / f"{i}.json", gain=1.0 + 3 * i) for i in range(3)))
    assert group["odd"] == [] and not group["is_class"] and panel(group, "gains")["rows"][0]["median"] is None


# ---- The files ----


def test_page_and_pictures_are_written_and_load_nothing(tmp_path, capsys):
    paths = [write_results(tmp_path / f"{i}.json", gain=1.0 + i) for i in range(2)]
    (tmp_path / "bad.json").write_text("</script><script>alert(1)</script>")
    assert command.main([*map(str, paths), str(tmp_path / "bad.json"), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    html, *pictures = printed.out.split()
    assert [name.rpartition("-")[2] for name in pictures] == ["gains.png", "stairs.png", "machines.png"]
    assert "left out" in printed.err and "bad.json cannot be read" in printed.err
    text = (tmp_path / "out" / "index.html").read_text()
    assert html.endswith("index.html") and not re.search(r'(src|href)="(?!data:)', text) and "alert(1)" not in text
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert command.main([str(paths[0]), "--out", str(tmp_path / "out")]) == 0
    assert "is kept in" in capsys.readouterr().err and (tmp_path / "out/earlier-1/index.html").read_text() == text
    assert len([*(tmp_path / "out").glob("*.png")]) == 2, "one machine: none that compares machines is left from before"
