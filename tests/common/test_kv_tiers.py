"""Pages that have left the device come back: the same tokens, and fewer of them computed."""

import time
from functools import partial

import pytest
import torch

from common import kv_disk, kv_tiers
from common.bench.workloads import page_prompt
from common.errors import InvalidInput
from common.kv_disk import Disk
from common.kv_tiers import Tiers
from common.sampling import SamplingParams
from common.stages import load_engine

PAGE, PAGES, DOCUMENTS = 16, 28, 8  # memory for half of the documents
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


@pytest.fixture
def exact(monkeypatch):
    """Keep pages as they are: in 8 bits tokens may differ."""
    monkeypatch.setattr(kv_tiers, "Tiers", partial(Tiers, exact=True))
    monkeypatch.setattr(kv_tiers, "pass_seconds", lambda *_, **__: 1.0)  # a busy machine must not choose otherwise


@pytest.fixture
def make(loaded):
    def make(pages=PAGES, **options):
        memory = pages * PAGE * loaded.config.kv_bytes_per_token(loaded.dtype)
        return load_engine("06")(loaded, kv_memory=memory, page_size=PAGE, **options)

    return make


@pytest.fixture
def documents(loaded):
    return [page_prompt(loaded, 6 * PAGE + 1, f"document {number}") for number in range(DOCUMENTS)]


def in_turn(engine, documents, rounds=2):
    found = []
    for document in documents * rounds:
        [request] = engine.generate([document], GREEDY)
        found.append(request.token_ids)
        engine.check()
    return found


def test_what_comes_back_from_the_host_gives_the_same_tokens(make, documents, exact):
    plain, engine = make(), make(kv_host_memory="64M")
    assert in_turn(engine, documents) == in_turn(plain, documents)
    assert plain.stats()["prefix_tokens_hit"] == 0
    assert engine.stats()["kv_host_tokens_hit"] == DOCUMENTS * 6 * PAGE
    assert engine.stats()["kv_bytes_from_host"] == DOCUMENTS * 6 * engine.tiers.page_bytes
    assert "copied from the host" in engine.startup_notes


def test_the_host_forgets_what_was_used_least_recently(make, documents, exact):
    engine = make(kv_host_memory="64M")
    room = 7 * engine.tiers.page_bytes
    small = make(kv_host_memory=room)
    assert small.tiers.slots == 7
    in_turn(small, documents)
    assert len(small.tiers.kept) == 7 and small.stats()["kv_host_tokens_hit"] == 0


def test_preempted_requests_find_their_pages_on_the_host(make, documents, exact):
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    expected = [one.token_ids for one in make(pages=200).generate(documents, params)]
    engine = make(kv_host_memory="64M")
    assert [one.token_ids for one in engine.generate(documents, params)] == expected
    engine.check()
    assert engine.stats()["preemptions"] > 0


def test_8_bits_take_less_and_stay_near(loaded, make, documents):
    engine = make(kv_host_memory="64M")
    page = sum(pool[0].nbytes for pool in engine.tiers.pools)
    assert engine.tiers.page_bytes < 0.6 * page
    engine.generate([documents[0]], GREEDY)
    pages = [engine.scheduler.allocator.tree.root]
    while pages[-1].children:
        pages.append(next(iter(pages[-1].children.values())))
    before = engine.tiers.pools[0][pages[1].page].clone()
    engine.tiers.keep(pages[1])
    engine.tiers.fill(PAGES - 1, [host[next(iter(engine.tiers.kept.values()))] for host in engine.tiers.host])
    torch.testing.assert_close(engine.tiers.pools[0][PAGES - 1], before, atol=0.02 * before.abs().max(), rtol=0)


def test_pages_on_disk_survive_a_restart(make, documents, exact, tmp_path):
    first = make(kv_host_memory="64M", kv_disk=tmp_path)
    expected = in_turn(first, documents, rounds=1)
    first.close()
    assert len(list(tmp_path.glob("*.kv"))) >= DOCUMENTS * 6
    second = make(kv_host_memory="64M", kv_disk=tmp_path)
    assert in_turn(second, documents, rounds=1) == expected
    assert second.stats()["kv_disk_tokens_hit"] == DOCUMENTS * 6 * PAGE
    second.close()


def torn(files):
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def swapped(files):
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(content)


def forged(files):
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
            opened.truncate(10**9)


@pytest.mark.parametrize("damage", [torn, swapped, forged, foreign, huge])
def test_a_file_that_is_not_as_it_was_written_is_told_and_ignored(make, documents, exact, tmp_path, caplog, damage):
    first = make(kv_host_memory="64M", kv_disk=tmp_path)
    expected = in_turn(first, documents[:2], rounds=1)
    first.close()
    damage(sorted(tmp_path.glob("*.kv")))
    second = make(kv_host_memory="64M", kv_disk=tmp_path)
    assert in_turn(second, documents[:2], rounds=1) == expected
    assert second.stats()["kv_disk_tokens_hit"] == 0
    assert any("is ignored" in record.getMessage() for record in caplog.records)
    second.close()


def test_another_model_or_page_size_finds_nothing(loaded, make, documents, exact, tmp_path):
    first = make(kv_host_memory="64M", kv_disk=tmp_path)
    in_turn(first, documents[:2], rounds=1)
    first.close()
    assert kv_tiers.root_name(loaded, PAGE) == first.tiers.root != kv_tiers.root_name(loaded, 32)


def test_two_servers_share_a_folder(make, documents, exact, tmp_path, monkeypatch):
    monkeypatch.setattr(kv_disk, "LOOK_SECONDS", 0.05)
    one, other = (make(kv_host_memory="64M", kv_disk=tmp_path) for _ in range(2))
    expected = in_turn(one, documents[:2], rounds=1)
    one.close()
    until = time.monotonic() + 30
    while len(other.tiers.disk.known) < 12 and time.monotonic() < until:
        time.sleep(0.02)
    assert in_turn(other, documents[:2], rounds=1) == expected
    assert other.stats()["kv_disk_tokens_hit"] == 2 * 6 * PAGE
    other.close()


def test_a_folder_takes_no_more_than_it_may(tmp_path):
    page = torch.arange(4096, dtype=torch.float32)
    disk = Disk(tmp_path, 10 * page.nbytes, [(4096,)], torch.float32)
    names = [bytes([number]) * 32 for number in range(30)]
    for name in names:
        disk.write(name, [page + name[0]])
    disk.close()
    files = list(tmp_path.glob("*.kv"))
    assert sum(file.stat().st_size for file in files) <= 10 * page.nbytes and disk.path(names[-1]) in files
    assert not disk.path(names[0]).exists() and not [file for file in tmp_path.iterdir() if file.suffix != ".kv"]


def test_a_folder_that_cannot_be_written_costs_a_line_and_no_answer(make, documents, exact, tmp_path, caplog):
    engine = make(kv_host_memory="64M", kv_disk=tmp_path / "kv")
    (tmp_path / "kv").rmdir()
    assert len(in_turn(engine, documents, rounds=1)) == DOCUMENTS
    engine.close()
    assert any("was not written" in record.getMessage() for record in caplog.records)


def test_what_cannot_be_is_refused(make, tmp_path):
    with pytest.raises(InvalidInput, match="give --kv-host-memory, too"):
        make(kv_disk=tmp_path)
    with pytest.raises(InvalidInput, match="a page takes [0-9,]+ bytes: give a larger --kv-host-memory"):
        make(kv_host_memory="1K")
