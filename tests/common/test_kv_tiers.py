"""Pages that have left the device come back: the same tokens, and fewer of them computed."""

import threading
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch

from common import kv_copies, kv_disk, kv_tiers
from common.acceleration.accelerate import make_engine
from common.bench.workloads import page_prompt
from common.errors import InvalidInput
from common.kv_disk import Disk
from common.kv_tiers import TierOptions, Tiers, root_name
from common.stages import load_engine, load_stage_module
from tests.helpers.engine_options import drain, endless, pool
from tests.helpers.faulty_fleet import FaultyFleet, lose_both_workers

PAGE, PAGES, DOCUMENTS = 16, 28, 8  # memory for half of the documents
TOKENS = 6 * PAGE  # tokens of a document that can come back: its last token is always computed
GREEDY = endless(8)


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Keep pages in their own type, since 8 bits may change tokens; and always copy, however busy the machine is."""
    monkeypatch.setattr(kv_tiers, "Tiers", partial(Tiers, exact=True))
    monkeypatch.setattr(kv_tiers, "pass_seconds", lambda *_, **__: 1e3)


@pytest.fixture
def make(loaded):
    def make(host="64M", disk=None, stage="06", pages=PAGES, **options):
        given = {"token_budget": 256} | pool(pages, PAGE) | options
        return make_engine(load_engine(stage), loaded, tiers=TierOptions(host, disk), **given)

    return make


@pytest.fixture
def documents(loaded):
    return [page_prompt(loaded, TOKENS + 1, f"document {number}") for number in range(DOCUMENTS)]


def in_turn(engine, documents, rounds=1):
    """Return the tokens of each answer; the books balance behind each."""
    found = []
    for document in documents * rounds:
        found += [request.token_ids for request in engine.generate([document], GREEDY)]
        engine.check()
    return found


def served(engine, documents):
    """Return the tokens of each answer of an engine that is closed then."""
    found = in_turn(engine, documents)
    engine.close()
    return found


@pytest.mark.parametrize(
    ("stage", "options"), [("06", {}), ("07", {"num_draft_tokens": 3}), ("08", {"replicas": 1, "num_draft_tokens": 3})]
)
def test_what_comes_back_gives_the_same_tokens(make, documents, stage, options):
    plain, engine = (make(host, stage=stage, **options) for host in (None, "64M"))
    assert in_turn(engine, documents, rounds=2) == in_turn(plain, documents, rounds=2)
    assert plain.stats()["prefix_tokens_hit"] == engine.stats()["prefix_tokens_hit"] == 0
    assert engine.stats()["kv_host_tokens_hit"] == DOCUMENTS * TOKENS
    assert "a page is copied from the host in" in engine.startup_notes
    engine.close()


def test_answers_say_how_much_came_back(make, documents):
    engine = make()
    in_turn(engine, documents)
    [request] = engine.generate([documents[0]], GREEDY)
    assert request.cached_tokens == TOKENS
    assert engine.stats()["kv_bytes_from_host"] == 6 * engine.tiers.page_bytes


def test_the_host_forgets_what_was_used_least_recently(make, documents):
    engine = make(host=12 * make().tiers.page_bytes)  # two documents
    in_turn(engine, documents)  # the last four are on the device
    back = [engine.generate([documents[place]], GREEDY)[0].cached_tokens for place in (3, 1)]
    assert back == [TOKENS, 0]


@pytest.mark.parametrize("stage", ["05", "06", "07"])
def test_preempted_requests_find_their_pages_on_the_host(make, documents, stage):
    options = {"stage": stage} | ({"num_draft_tokens": 2} if stage == "07" else {})
    params = endless(80)
    expected = [one.token_ids for one in make(None, pages=200, **options).generate(documents, params)]
    engine = make(**options)
    assert [one.token_ids for one in engine.generate(documents, params)] == expected
    engine.check()
    assert engine.stats()["preemptions"] > 0 and engine.stats()["kv_host_tokens_hit"] > 0


def test_8_bits_take_less_and_stay_near(make, documents, monkeypatch):
    pools = [torch.randn(3, 2, PAGE, 64) for _ in "kv"]
    tiers = Tiers(pools, PAGE, bytes(32), 2**20)
    assert tiers.page_bytes < 0.6 * sum(part[0].nbytes for part in pools)
    tiers.keep(b"a name", 1)
    tiers.copy_evicted()
    tiers.copies.come({tiers.kept[b"a name"]: 2})
    for part in pools:
        assert not torch.equal(part[2], part[1])
        torch.testing.assert_close(part[2], part[1], atol=0.005 * part[1].abs().max().item(), rtol=0)
    monkeypatch.setattr(kv_tiers, "Tiers", Tiers)
    engine = make()
    in_turn(engine, documents, rounds=2)
    assert engine.stats()["kv_host_tokens_hit"] > 0


@pytest.mark.gpu
def test_on_a_gpu_a_page_leaves_before_its_place_is_written_again(monkeypatch):
    pools = [torch.zeros(12, 36, 16, 8, 128, device="cuda") for _ in range(2)]
    monkeypatch.setattr(kv_copies, "ASIDE_BYTES", 10 * 2 * pools[0][0].nbytes)
    tiers = Tiers(pools, PAGE, bytes(32), 300 * 2 * pools[0][0].nbytes)
    product, rng = torch.randn(4096, 4096, device="cuda"), Random(0)
    for number in range(0, 600, 6):
        if number % 60 == 0:
            product @ product  # Copies wait behind it, and the places set aside for them run out.
        pages = rng.sample(range(12), 6)
        for place, page in enumerate(pages):
            for part in pools:
                part[page] = number + place
            tiers.keep((number + place).to_bytes(32, "big"), page)
        tiers.copy_evicted()
        for part in pools:
            part.fill_(-1.0)
        kept = {name: tiers.kept[name] for name in rng.sample([*tiers.kept], 6)}
        tiers.copies.come(dict(zip(kept.values(), pages, strict=True)))
        for name, page in zip(kept, pages, strict=True):
            assert all((part[page] == int.from_bytes(name, "big")).all() for part in pools)
    tiers.copies.wait()
    for name, slot in tiers.kept.items():
        assert all((host[slot] == int.from_bytes(name, "big")).all() for host in tiers.host)


def test_runs_are_all_slots_once():
    found = [*kv_copies.runs(dict.fromkeys([0, 2, 3, 4, 9]))]
    assert found == [(slice(0, 1), slice(0, 1)), (slice(1, 4), slice(2, 5)), (slice(4, 5), slice(9, 10))]
    assert not [*kv_copies.runs({})]


# ---- The disk ----


@pytest.mark.parametrize("side_by_side", [False, True])
def test_pages_on_disk_survive_a_restart_and_are_shared(make, documents, tmp_path, side_by_side):
    other = make(disk=tmp_path) if side_by_side else None
    expected = served(make(disk=tmp_path), documents)
    other = other or make(disk=tmp_path)
    assert served(other, documents) == expected
    assert other.stats()["kv_disk_tokens_hit"] == other.stats()["kv_host_tokens_hit"] == DOCUMENTS * TOKENS


def test_others_decode_while_a_disk_is_read(make, documents, tmp_path):
    expected = served(make(disk=tmp_path), documents[:1])
    engine = make(disk=tmp_path)
    running = engine.add(documents[1], endless(60))
    engine.step()
    gate = threading.Event()
    for _ in range(kv_disk.READERS):
        engine.tiers.disk.reader.submit(gate.wait)  # a slow disk
    returning = engine.add(documents[0], GREEDY)
    for _ in range(5):
        engine.step()
    assert len(running.token_ids) >= 5 and not returning.token_ids
    gate.set()
    drain(engine)
    assert returning.token_ids == expected[0] and returning.cached_tokens == TOKENS
    engine.close()


def test_workers_that_die_lose_no_request_and_their_successors_read_the_disk(make, documents, tmp_path, monkeypatch):
    expected = in_turn(make(None), documents)
    monkeypatch.setattr(load_stage_module("08", "deployment"), "LocalFleet", FaultyFleet)
    engine = make(disk=tmp_path, stage="08", replicas=2, pages=14, num_draft_tokens=0)
    assert in_turn(engine, documents) == expected
    requests = [engine.add(document, GREEDY) for document in documents]
    lose_both_workers(engine)
    assert [request.token_ids for request in requests] == expected
    assert engine.stats()["workers_lost"] == 2 and engine.stats()["kv_disk_tokens_hit"] > 0
    engine.close()


def swapped(files):
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)


def torn(files):
    for file in files:
        file.write_bytes(file.read_bytes()[:-100])


def damaged(files):
    for file in files:
        content = bytearray(file.read_bytes())
        content[-100] ^= 1
        file.write_bytes(content)


def foreign(files):
    for file in files:
        file.write_bytes(b"\x80\x04cos\nsystem\n")


def huge(files):
    for file in files:
        with file.open("ab") as opened:
            opened.truncate(10**8)  # A dozen fit: from a folder that is too full, some would be removed unread.


@pytest.mark.parametrize("damage", [swapped, torn, damaged, foreign, huge])
def test_a_file_that_is_not_as_it_was_written_costs_a_line_and_no_answer(make, documents, tmp_path, caplog, damage):
    expected = served(make(disk=tmp_path), documents[:2])
    damage(sorted(tmp_path.glob("*.kv")))
    engine = make(disk=tmp_path)
    assert served(engine, documents[:2]) == expected
    assert engine.stats()["kv_disk_tokens_hit"] == 0
    assert any("is removed" in record.getMessage() for record in caplog.records)


def test_names_depend_on_what_k_and_v_depend_on(loaded, make, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(10_000))
    others = [
        replace(loaded, dtype=torch.bfloat16),
        replace(loaded, quantization="int8"),
        replace(loaded, folder=tmp_path),
        replace(loaded, config=replace(loaded.config, rope=loaded.config.rope | {"rope_theta": 1.0})),
    ]
    names = [root_name(loaded, PAGE), root_name(loaded, 2 * PAGE), *(root_name(other, PAGE) for other in others)]
    assert len(set(names)) == len(names) and root_name(loaded, PAGE) == names[0]
    random = replace(loaded, folder=None)  # random weights, always from one seed
    assert root_name(random, PAGE) == root_name(random, PAGE) != root_name(loaded, PAGE)


def test_a_folder_takes_no_more_than_it_may(tmp_path):
    page = [torch.full((4096,), 1.0), torch.full((4096,), 2.0)]
    size = 2 * page[0].nbytes
    disk = Disk(tmp_path, 10 * size, [(4096,)] * 2, torch.float32)
    names = [bytes([number]) * 32 for number in range(30)]
    for name in names:
        disk.write(name, page, wait=True)
    disk.close()
    files = list(tmp_path.iterdir())
    assert 8 <= len(files) <= 10 and {file.suffix for file in files} == {".kv"}
    assert names[-1] in disk and names[0] not in disk


def test_a_folder_that_is_gone_costs_a_line_and_no_answer(make, documents, tmp_path, caplog):
    engine = make(disk=tmp_path / "kv")
    engine.tiers.disk.writer.submit((tmp_path / "kv").rmdir).result()
    assert served(engine, documents) == in_turn(make(None), documents)
    assert ["no pages are written" in record.getMessage() for record in caplog.records] == [True]


def test_what_cannot_be_is_refused(loaded, make, tmp_path):
    (tmp_path / "file").touch()
    for message, given in {
        "give --kv-host-memory, too": {"host": None, "disk": tmp_path},
        "a page takes [0-9,]+ bytes: give a larger --kv-host-memory": {"host": "1K"},
        "give another --kv-disk": {"disk": tmp_path / "file" / "folder"},
    }.items():
        with pytest.raises(InvalidInput, match=message):
            make(**given)
    with pytest.raises(InvalidInput, match="give a larger --kv-disk-memory"):
        Disk(tmp_path, 1000, [(4096,)] * 2, torch.float32)
    with pytest.raises(InvalidInput, match="stages 05 to 08"):
        make_engine(load_engine("02"), loaded, tiers=TierOptions("64M"))


def test_where_copies_take_longer_the_host_keeps_none(make, monkeypatch):
    monkeypatch.setattr(kv_tiers, "pass_seconds", lambda *_, **__: 0.0)
    engine = make()
    assert engine.tiers is None and "so the host keeps none" in engine.startup_notes
