"""Milestones of stage 05: pages and their owners, which request gets one, and what happens when none is left."""

import random

import torch

from common.attention import choose_attention
from common.errors import InvalidInput, counted
from common.learn.milestones import milestone
from common.learn.milestones.paged import (
    check_chunks,
    chunk,
    decoding,
    make_scheduler,
    owners,
    sequence,
)
from common.learn.milestones.pictures import page_map, rows
from common.learn.milestones.stage_under_test import (
    drain,
    endless,
    expect,
    expect_attention_in_steps,
    expect_error,
    expect_rows,
    expect_stats,
    expect_steps,
    expect_tensors,
    expect_tokens,
    make_request,
)


def small_engine(stage, pages: int):
    return stage.make_engine(kv_memory=pages * 16 * stage.token_bytes, attention="torch")


@milestone("PageTable.capacity, PageTable.slot_mapping")
def test_where_a_token_lies(stage):
    """Token number p lies in entry p // page_size of the page table, at place p % page_size of that page.

    Hint: `//` picks the entry of the table, `%` the place in the page; the slot is page * page_size + place.
    Second hint: pages = [7, 2], four tokens each: token 5 is in entry 1, page 2, at place 1: slot 2 * 4 + 1 = 9.
    """
    table = stage.page_table.PageTable(page_size=4)
    table.pages = [7, 2, 9, 4]
    slots = [28, 29, 30, 31, 8, 9, 10, 11, 36, 37, 38, 39, 16, 17, 18, 19]
    in_page = [page for page in table.pages for _ in range(4)]
    expect(table.capacity == 16, f"four pages of 4 tokens have a capacity of 16, not {table.capacity}")
    for start, stop in ((0, 16), (2, 14), (13, 14), (5, 5)):
        above = {"token": range(start, stop), "in page": in_page[start:stop]}
        mine = table.slot_mapping(start, stop)
        expect_rows(f"slot_mapping({start}, {stop})", mine, slots[start:stop], 0 if start else 4, **above)


@milestone(
    "PageAllocator.pages_for, PageAllocator.extend, PageAllocator.release, PageAllocator.check_fits, "
    "PageAllocator.check"
)
def test_every_page_has_one_owner(stage):
    """At any time every page is in the free list or in one page table, and never in both or in two.

    Hint: Count what the table lacks before you take a page; release returns each page once and empties the table.
    Second hint: lacking = pages_for(tokens) - len(table.pages): if more than are free, take none; pages.extend(...).
    """
    allocator = stage.page_table.PageAllocator(num_pages=12, page_size=4)
    counts = [allocator.pages_for(tokens) for tokens in (1, 4, 5, 8, 9)]
    expect_rows("pages_for", counts, [1, 1, 2, 2, 3], tokens=(1, 4, 5, 8, 9))
    tables = {letter: stage.page_table.PageTable(4) for letter in "ABCD"}
    rng = random.Random(5)
    for _ in range(200):
        letter, tokens = rng.choice("ABCD"), rng.randint(1, 24)
        table, free = tables[letter], len(allocator.free)
        before = list(table.pages)
        if rng.random() < 0.3:
            did = f"release({letter})"
            allocator.release(table)
            expect(not table.pages, f"after {did} its table still has pages {list(table.pages)}")
            kind, mine = (type(one.pages).__name__ for one in (stage.page_table.PageTable(4), table))
            what = f"{did} put a {mine} in place of the {kind} that `pages` was"
            expect(mine == kind, f"{what}: empty it, for a batch copies an array as it is, and a list number by number")
        else:
            lacking = max(0, -(-tokens // 4) - len(before))
            did, fits = f"extend({letter}, {tokens})", lacking <= free
            said, now = allocator.extend(table, tokens), list(table.pages)
            expect(said is fits, f"{did} of {len(before)} pages, with {free} free, returned {said}, not {fits}")
            expect(now[: len(before)] == before, f"{did} changed the pages that were there: {now}")
            size = len(before) + lacking * fits
            expect(len(now) == size, f"after {did}, which returned {said}, its table has {len(now)} pages, not {size}")
        owners = {name: one.pages for name, one in tables.items()}
        owned = [page for pages in owners.values() for page in pages]
        balanced = sorted([*owned, *allocator.free]) == list(range(12))
        expect(balanced, f"after {did} the books do not balance", page_map(12, owners, allocator.free))
    allocator.check(list(tables.values()))
    allocator.check_fits(48)
    says = expect_error(InvalidInput, lambda: allocator.check_fits(49), "check_fits(49) in 12 pages of 4 tokens")
    told = all(word in says for word in ("13", "12", "--kv-memory"))
    what = "the error must say how many pages the request needs and how many the pool has, and name --kv-memory"
    expect(told, f"{what}: {says}")
    for table in tables.values():
        allocator.release(table)
    allocator.extend(tables["A"], 8)
    lost, twice = allocator.free.pop(), tables["A"].pages[0]
    wrong = {"a page lost": [], "a page owned twice": [twice, lost], "a page lost and another owned twice": [twice]}
    for what, tables["B"].pages in wrong.items():
        expect_error(AssertionError, lambda: allocator.check(list(tables.values())), f"`check`, with {what},")


@milestone("Batch.__init__")
def test_one_batch_for_all_requests(stage):
    """All tokens of the step end to end, with id, position and slot; for each chunk its length and table.

    Hint: A chunk's positions begin at chunk.start. Only one that completes its sequence has a row to score: its last.
    Second hint: `lengths` counts the past and the tokens of this step: chunk.start + len(chunk.token_ids).
    """
    a, c, d = (sequence(stage, *one) for one in (("A", 6, [3, 0]), ("C", 9, [2, 5, 1]), ("D", 7, [7, 4])))
    chunks = [chunk(stage, a, 5, 6), chunk(stage, c, 0, 4), chunk(stage, d, 5, 7)]
    batch = stage.batch.Batch(chunks, torch.device("cpu"))
    # A runs its last token, C the first 4 of 9, D its last 2.
    expect_tensors(batch, "ACCCCDD", token_ids=[15, 10, 11, 12, 13, 15, 16], positions=[5, 0, 1, 2, 3, 5, 6])
    expect_tensors(batch.paged, "ACCCCDD", slot_mapping=[1, 8, 9, 10, 11, 17, 18])
    expect_tensors(batch.paged, "ACD", lengths=[6, 4, 7], query_starts=[0, 1, 5, 7])
    expect_tensors(batch, "AD", logits_rows=[0, 6])
    for one, table in zip(chunks, batch.paged.page_tables.tolist(), strict=True):
        pages = one.sequence.page_table.pages
        expect_rows(f"page table of {one.sequence.request.request_id}", table[: len(pages)], pages)


@milestone("KVCache.bind, BoundCache.__call__")
def test_attention_over_pages(stage):
    """K and V of the step go to their slots; then each token attends to its own sequence, up to itself.

    Hint: Write before you attend: a token sees its own key, and those of the tokens beside it in the step.
    Second hint: attention.write(k, v, ..., self.batch.slot_mapping), then attention.attend(q, ..., self.plan).
    """
    config, running = stage.loaded.config, {"A": sequence(stage, "A", 7, [6, 1]), "B": sequence(stage, "B", 5, [3, 0])}
    backend, _ = choose_attention("torch", torch.device("cpu"), torch.float32, config.head_dim)
    cache = stage.kv_cache.KVCache(stage.loaded, 8, 4, backend)

    def bind(spans):
        chunks = [chunk(stage, running[name], start, stop) for name, start, stop in spans]
        return cache.bind(stage.batch.Batch(chunks, torch.device("cpu")).paged)

    def place_of(name, position):
        return running[name].page_table.pages[position // 4], position % 4

    steps = (("A", 0, 6), ("B", 0, 3)), (("A", 6, 7), ("B", 3, 5))
    expect_attention_in_steps(stage, cache, steps, bind, place_of)


@milestone("Scheduler.add, Scheduler.remove, Scheduler._admit, Scheduler._allocate, Engine.max_model_len")
def test_admitted_or_refused(stage):
    """The oldest waiting request is admitted if its pages are free, and one more for each request that runs.

    Hint: `add` checks what a request may grow to, prompt and max_tokens; _allocate counts pages for its num_tokens.
    Second hint: num_tokens includes what a preempted request has put out. No room: return None, change nothing.
    """
    scheduler = make_scheduler(stage, pages=8)
    what = "`add`, prompt 30 + max_tokens 3 = 33 tokens in 8 pages of 4,"
    says = expect_error(InvalidInput, lambda: scheduler.add(make_request("X", 30, 3)), what)
    expect("9 pages" in says and not scheduler.waiting, f"refuse what needs 9 pages, and do not queue it: {says}")
    a, b, c, d, e = (make_request(*one, 9) for one in zip("ABCDE", (12, 13, 1, 4, 16), strict=True))
    for request in (a, b, c):
        scheduler.add(request)
    for letter, there, needed, reserve in (("A", 8, 3, 0), ("B", 5, 4, 1), ("C", 1, 1, 2)):
        sequence, fits = scheduler._admit(), needed + reserve <= there
        said = f"{letter} needs {needed} of {there} free pages, with {reserve} in reserve"
        expect((sequence is not None) == fits, f"{said}: it must {'run' if fits else 'wait'}", owners(scheduler))
        if fits:
            expect(list(scheduler.running)[-1] == letter, f"`running` lacks {letter}: {list(scheduler.running)}")
            expect(len(sequence.page_table.pages) == needed, f"{letter} must get {needed} pages", owners(scheduler))
    scheduler.remove(a)
    expect([*scheduler.running] == ["B"], "`remove` leaves A in `running`")
    expect(len(scheduler.allocator.free) == 4, "the pages of A must be free again", owners(scheduler))
    for _ in range(5):
        d.append(7)  # as if D had been preempted after five tokens
    scheduler.add(e)
    scheduler.add(d)
    scheduler.remove(c)
    what = "E, the oldest, must wait: 4 pages and 1 in reserve, with 4 free. So D must wait behind it, though it fits"
    expect(scheduler._admit() is None and list(scheduler.waiting) == [e, d], what, owners(scheduler))
    scheduler.remove(e)
    sequence = scheduler._admit()
    expect(sequence and len(sequence.page_table.pages) == 3, "D has 4 + 5 tokens: 3 pages; 1 in reserve, 4 free")
    one = make_scheduler(stage, pages=8, max_running=1)
    one.add(make_request("A", 3, 3))
    one.add(make_request("B", 3, 3))
    expect(one._admit() and not one._admit(), "with max_running 1, a second request must wait")
    for pages, length in ((4, 64), (40, 512)):
        mine = small_engine(stage, pages).max_model_len
        expect(mine == length, f"{pages} pages of 16 and a context of 512: max_model_len is {length}, not {mine}")


@milestone("Scheduler._extend")
def test_a_request_grows(stage):
    """Before a decode step there is a place for token number `computed`: a new page if the last one is full. If none is
    free, the youngest is preempted, even if it is the one that asks.

    Hint: Has `computed` a place? That is the number of the next token, so the table must hold computed + 1.
    Second hint: allocator.extend(sequence.page_table, sequence.computed + 1) takes a page only if one is lacking. While
    it returns False, `preempt`, until this sequence no longer runs.
    """
    scheduler = make_scheduler(stage, pages=8, page_size=16)
    sequence = decoding(stage, scheduler, "A", 14)
    for computed, pages in ((15, 1), (16, 2), (17, 2), (32, 3)):
        while sequence.request.num_tokens <= computed:
            sequence.request.append(7)
        sequence.computed = computed
        said, table = scheduler._extend(sequence), sequence.page_table.pages
        in_page = [page for page in table for _ in range(16)]
        in_page += ["?"] * (computed + 1 - len(in_page))
        wrong = None if len(table) == pages else min(len(table), pages) * 16
        picture = rows({"token": range(computed + 1), "in page": in_page}, wrong, 16)
        what = f"with {computed} tokens computed, token {computed} needs {counted(pages, 'page')}"
        what = f"{what}, and the table has {len(table)}; `_extend` returned {said}"
        expect(said is True and len(table) == pages, what, picture)
    scheduler = make_scheduler(stage, pages=2, page_size=16)
    _, b = (decoding(stage, scheduler, name, 16) for name in "AB")
    scheduler.preempt = lambda: scheduler.allocator.release(scheduler.running.popitem()[1].page_table)
    said, running = scheduler._extend(b), list(scheduler.running)
    what = f"after `_extend(B)`, `running` must be ['A'], not {running}: B was the youngest"
    expect(running == ["A"] and said is False, f"{what}; `_extend` returned {said}", owners(scheduler))


@milestone("Scheduler.preempt", seconds=5)
def test_the_youngest_gives_way(stage):
    """With no page free, the youngest request gives back all its pages and goes to the front of the queue.

    Hint: Release its page table, put its request at the front of `waiting`, and count the preemption.
    Second hint: `running.popitem()` is the youngest. It may be the one that asks: then `_extend` returns False.
    """
    scheduler = make_scheduler(stage, pages=4, page_size=16)
    decoding(stage, scheduler, "A", 40)
    decoding(stage, scheduler, "B", 14)
    scheduler.waiting.append(make_request("C", 14))
    before = owners(scheduler)
    scheduler.preempt()
    picture = f"before\n{before}\nafter `preempt`\n{owners(scheduler)}"
    running = list(scheduler.running)
    expect(running == ["A"], f"`running` must be ['A'], not {running}: B was the youngest", picture)
    expect(len(scheduler.allocator.free) == 1, "the page of B must be free", picture)
    expect_rows("the queue", [request.request_id for request in scheduler.waiting], ["B", "C"])
    expect(scheduler.preemptions == 1, f"one preemption, and `preemptions` is {scheduler.preemptions}")


@milestone("Scheduler.schedule, Engine.schedule, Engine.run", seconds=40)
def test_short_of_pages_and_no_token_changed(stage):
    """In a pool of 8 pages six requests do not all fit: some are preempted, and all end, with the tokens of stage 02.
    The trace counts preemptions since the start: record.counters["preemptions"].

    Hint: Extend all decodes before you build chunks of prompts; a preempted sequence has no chunk in this step.
    Second hint: Iterate over list(self.running.values()): `_extend` may change `running` meanwhile.
    """
    scheduler = make_scheduler(stage, pages=32, max_running=2, budget=3)
    check_chunks(scheduler)
    # In step 40, A needs its 11th page, and preempts B in the middle of its prompt.
    expect_steps(scheduler, [{"A": 2, "B": 88}], [{"A": 2, "B": 1}, *[{"A": 1, "B": 2}] * 38, {"A": 1}])
    prompts = [prompt[: 20 + 2 * i] for i, prompt in enumerate(stage.prompts(6, 40))]
    engine = small_engine(stage, 8)
    check_chunks(engine.scheduler)
    requests = [engine.add(prompt, endless(10), letter) for letter, prompt in zip("ABCDEF", prompts, strict=True)]
    drain(engine)
    expect_tokens(stage, engine, requests)
    expect(engine.scheduler.preemptions > 0, "nothing was preempted, so the pool of 8 pages was never used up")
    expect(all(step.works for step in engine.trace), "`Engine.schedule` must record what runs: record.work(...)")
    mine, ever = engine.trace[-1].counters.get("preemptions"), engine.scheduler.preemptions
    what = f"the trace's counter `preemptions` is {mine}, and scheduler.preemptions is {ever}"
    expect(mine == ever, f"{what}: it counts since the start")


@milestone("Scheduler.check, Engine.stats")
def test_the_books_balance(stage):
    """`stats` counts the tokens that have pages, and `preemptions`; less than one page for each request is reserved for
    no token.

    Hint: kv_tokens_reserved is the sum of the tables' capacities, kv_tokens_used that of `computed`.
    Second hint: `check`: 0 <= computed < num_tokens, and computed <= capacity < num_tokens + page_size.
    """
    engine = small_engine(stage, 64)
    prompts = [stage.prompts(1, 15)[0], *stage.prompts(10, 50)[1:]]  # the first fills its page in the second step
    for letter, prompt in zip("ABCDEFGHIJ", prompts, strict=True):
        engine.add(prompt, endless(40), letter)
    for _ in range(3):
        engine.step()
        engine.check()  # It must not find fault with books that are right.
    running = engine.scheduler.running
    used = sum(sequence.computed for sequence in running.values())
    pages = sum(len(sequence.page_table.pages) for sequence in running.values())
    wanted = {
        "running": len(running),
        "waiting": 10 - len(running),
        "preemptions": 0,
        "kv_tokens_capacity": 1024,
        "kv_tokens_used": used,
        "kv_tokens_reserved": 16 * pages,
        "kv_bytes_reserved": 16 * pages * stage.token_bytes,
    }
    expect_stats("after three steps", engine, wanted)
    sequence, many = running["A"], running["B"]
    sequence.computed, saved = sequence.request.num_tokens, sequence.computed
    expect_error(AssertionError, engine.scheduler.check, "`check`, with computed = num_tokens in a sequence,")
    sequence.computed = saved
    engine.scheduler.allocator.extend(many.page_table, many.request.num_tokens + 40)
    expect_error(AssertionError, engine.scheduler.check, "`check`, with pages for 40 tokens too many,")
