"""Milestones of stage 06: pages that have been computed stay in a tree, and requests that begin alike share them."""

from common.learn.milestones import milestone
from common.learn.milestones.paged import decoding, make_scheduler, owners, owners_by_name
from common.learn.milestones.pictures import timeline, tree
from common.learn.milestones.stage_under_test import (
    drain,
    endless,
    expect,
    expect_error,
    expect_rows,
    expect_stats,
    expect_steps,
    expect_tokens,
    letters,
    make_request,
)


def show(tree_of_pages) -> str:
    return tree(tree_of_pages.root.children)


@milestone("PrefixTree.follow, PrefixTree.insert")
def test_a_path_in_the_tree(stage):
    """`insert` adds a page at the end of a path, with one user; `follow` finds it, and adds a user.

    Hint: The end of a path is path[-1], or the root; its children are found by tuple(tokens).
    Second hint: A page no request uses leaves `unused` when `follow` finds it. `insert` counts the nodes in `size`.
    """
    cached = stage.prefix_tree.PrefixTree()
    a = cached.insert([], [1, 2], page=5)
    b = cached.insert([a], [3, 4], page=0)
    expect(a is not None and a.parent is cached.root and b.parent is a, "each page hangs under the page before it")
    expect(cached.size == 2 and a.references == b.references == 1, "two pages, each with its first user", show(cached))
    found = [cached.follow(*one) for one in (([], [1, 2]), ([a], [3, 4]), ([a], [1, 2]), ([], [3, 4]))]
    mine, tokens = [node.page if node else None for node in found], ["1 2", "3 4", "1 2", "3 4"]
    expect_rows("pages found under: root, [1 2], [1 2], root", mine, [5, 0, None, None], tokens=tokens)
    expect(a.references == b.references == 2, "`follow` counts one user more", show(cached))
    b.references = 0
    cached.unused[b] = None
    expect(cached.follow([a], [3, 4]) is b and b not in cached.unused, "a page that is used again is not `unused`")


@milestone("PrefixTree.release, PrefixTree.evict")
def test_unused_pages_go_in_order(stage):
    """A page without users stays until memory runs out; then the least recently used leaf goes first.

    Hint: Release from the deepest page up: in `unused`, a page must come before its parent.
    Second hint: evict: unused.popitem(last=False) is the least recently used; its parent must forget it too.
    """
    cached = stage.prefix_tree.PrefixTree()
    a = cached.insert([], [1], 0)
    b, c = cached.insert([a], [2], 1), cached.insert([], [3], 2)
    cached.follow([], [1])
    cached.release([a, b])
    expect([*cached.unused] == [b], "A still has a user, B has none: `unused` must be B alone", show(cached))
    cached.follow([a], [2])
    cached.release([a, b])
    cached.release([c])
    order = [node.page for node in cached.unused]
    what = "released are A with B below it, then C; pages in `unused`, the least recently used first"
    expect_rows(what, order, [1, 0, 2], **{"page of": "BAC"})
    cached.follow([], [1])
    cached.release([a])  # used again: now A is younger than C, and B is not
    expect_rows("pages in the order of eviction", [cached.evict() for _ in range(3)], [1, 2, 0])
    what = "everything is evicted, and the tree is not empty"
    expect(cached.size == 0 and not cached.root.children, what, show(cached))


@milestone(
    "PageAllocator.extend, PageAllocator.available, PageAllocator.adopt, PageAllocator.release, PageAllocator.check"
)
def test_free_owned_or_cached(stage):
    """Every page is free, owned by one table, or in the tree, whose unused pages are as good as free ones.

    Hint: `extend` evicts when no page is free. `adopt` puts a cached page on the path and frees the table's copy.
    Second hint: `release`: pages on the path go back to the tree (tree.release), those behind it to the free list.
    """
    allocator = stage.page_table.PageAllocator(6, 2)
    table, other, newcomer = (stage.page_table.PageTable(2) for _ in range(3))
    cached = allocator.tree

    def pages():
        return owners_by_name(allocator, {"A": table, "B": other}) + "\n" + show(cached)

    expect(allocator.extend(table, 6) is True and len(table.pages) == 3, "6 tokens in pages of 2 are three pages")
    for tokens, place in (([1, 2], 0), ([3, 4], 1)):
        allocator.adopt(table, cached.insert(table.path, tokens, table.pages[place]))
    held = [len(pages) for pages in (table.path, table.pages, allocator.free)]
    expect(held == [2, 3, 3], "`adopt` of its own page changes the path alone, and frees nothing")
    allocator.check([table])
    table.pages[:2] = table.pages[1::-1]
    what = "`check`, with the pages of a table in another order than those of its path,"
    expect_error(AssertionError, lambda: allocator.check([table]), what)
    table.pages[:2] = table.pages[1::-1]
    allocator.extend(other, 4)
    copy = other.pages[0]
    allocator.adopt(other, cached.follow([], [1, 2]))
    expect(other.pages[0] == table.pages[0], "B must use the cached page in place of its own copy", pages())
    expect(copy in allocator.free, "the copy that B had computed must be free", pages())
    allocator.adopt(newcomer, cached.follow([], [1, 2]))
    expect(len(newcomer.pages) == 1, "for a table without a page, `adopt` appends the cached one")
    allocator.release(newcomer)
    allocator.release(table)
    expect(not table.pages and not table.path, "a table that was released is empty", pages())
    allocator.check([other])
    what = f"three pages are free, one is cached and unused: 4 available, not {allocator.available}"
    expect(allocator.available == 4, what, pages())
    expect(allocator.extend(table, 8) is True, "4 pages are available, one of them by eviction", pages())
    expect(allocator.extend(newcomer, 2) is False, "nothing is free or unused: `extend` returns False", pages())
    allocator.check([table, other])
    allocator.free.append(table.pages[0])
    expect_error(AssertionError, lambda: allocator.check([table, other]), "`check`, with a page both free and owned,")


@milestone("Scheduler.count_computed, Scheduler.cache_full_pages")
def test_full_pages_go_into_the_tree(stage):
    """After a step, every full page of computed tokens is in the tree; of two copies, the younger is given up.

    Hint: For each running sequence: while the next page of its path is full of computed tokens, put it into the tree.
    Second hint: node = tree.follow(...) or tree.insert(...), then allocator.adopt(table, node).
    """
    scheduler = make_scheduler(stage, pages=12, page_size=4)
    a, b = (decoding(stage, scheduler, name, list(range(1, 11))) for name in "AB")
    c = decoding(stage, scheduler, "C", [1, 2, 3, 4, 50, 60, 70, 80], computed=7)
    scheduler.cache_full_pages()
    cached = scheduler.allocator.tree
    expect(cached.size == 2, "A and B share two full pages, and C's first is the same: two nodes", show(cached))
    expect(a.page_table.pages[:2] == b.page_table.pages[:2], "A and B must use the same two pages", owners(scheduler))
    scheduler.count_computed([stage.scheduler.Chunk(c, 7, [80], completes=True)])
    expect(cached.size == 3 and len(c.page_table.path) == 2, "now C's second page is full", show(cached))
    scheduler.allocator.check([one.page_table for one in (a, b, c)])


@milestone("Scheduler._allocate, Scheduler._reuse")
def test_what_is_cached_is_taken_over(stage):
    """A new request takes over the cached pages it begins with; one that does not fit holds nothing.

    Hint: _reuse follows the tree page by page, while a token remains to be computed behind the page.
    Second hint: _allocate: _reuse, then pages for the rest, with one in reserve for each that runs; else release.
    """
    scheduler, tokens = make_scheduler(stage, pages=12, page_size=4), list(range(20, 32))
    decoding(stage, scheduler, "A", tokens)
    scheduler.cache_full_pages()
    for name, prompt, computed in (("B", [*tokens, 5, 6], 12), ("C", tokens, 8), ("D", [*tokens[:6], 1, 1, 1], 4)):
        sequence = scheduler._allocate(make_request(name, prompt, 9))
        expect(sequence is not None, f"{name} must find room: {scheduler.allocator.available} pages are available")
        said = f"{name} begins with {computed} cached tokens it need not compute: computed is {sequence.computed}"
        expect(sequence.computed == computed, said, show(scheduler.allocator.tree))
        pages = -(-len(prompt) // 4)
        expect(len(sequence.page_table.pages) == pages, f"{name} must have {pages} pages", owners(scheduler))
        scheduler.allocator.release(sequence.page_table)
    large = make_request("E", list(range(40, 76)), 1)
    available = scheduler.allocator.available
    expect(scheduler._allocate(large) is None, "E needs 9 pages and one in reserve, and 9 are available: it must wait")
    expect(scheduler.allocator.available == available, "what is refused must hold nothing")


@milestone("Scheduler._admit, Scheduler.preempt")
def test_the_second_follows_the_first(stage):
    """A prompt takes over what another has computed of it until it is admitted, and each prompt counts once.

    Hint: When a request is admitted, its tokens are asked for, and those computed already are hits: cached_tokens.
    Second hint: A request that was preempted counts no more: `preempt` notes it in the request, as `preempted`.
    """
    scheduler, tokens = make_scheduler(stage, pages=60, page_size=4, max_running=2, budget=13), list(range(20, 68))
    requests = [make_request("A", tokens, 9), make_request("B", [*tokens, 1, 2, 3, 4, 5], 9)]
    for request in requests:
        scheduler.add(request)
    # 13 tokens run in a step. In step 4 B begins behind 9 pages of A's.
    expect_steps(scheduler, [], [*[{"A": 13}] * 3, {"A": 9, "B": 4}, {"A": 1, "B": 12}])
    scheduler.check()
    what = "cached_tokens, counted when a request is admitted"
    expect_rows(what, [request.cached_tokens for request in requests], [0, 36], request="AB")
    scheduler.preempt()
    expect([one.request_id for one in scheduler.waiting] == ["B"], "the youngest, B, must be back in the queue")
    scheduler.schedule()
    mine = [scheduler.tokens_asked, scheduler.tokens_hit, *(request.cached_tokens for request in requests)]
    names = ["tokens_asked", "tokens_hit", "cached_tokens of A", "of B"]
    expect_rows("counts, when B has found its own pages after a preemption", mine, [48 + 53, 36, 0, 36], name=names)


@milestone("Engine.schedule")
def test_computed_once_and_kept(stage):
    """The second time, a prompt's cached pages are not computed again, nor is an answer in the next turn's prompt;
    tokens stay the same. record.counters["tokens_hit"] counts found tokens since the start.

    Hint: The scheduler counts `tokens_hit` since the start, as it counts `preemptions`.
    Second hint: schedule records `tokens_hit` in the trace: record.counters["tokens_hit"] = self.scheduler.tokens_hit
    """
    prompts, engine = stage.prompts(2, 50), stage.make_engine(attention="torch")
    for turn, output in ((1, 1), (2, 16), (3, 1)):  # the first time, a request ends in the step that runs its prompt
        requests = [engine.add(prompt, endless(output)) for prompt in prompts]
        names = letters(engine.requests)
        drain(engine)
        expect_tokens(stage, engine, requests)
        engine.check()
        works = [work for step in engine.trace for work in step.works if work.request_id == requests[0].request_id]
        first, wanted, picture = works[0].tokens, {1: 50, 2: 2, 3: 2}[turn], timeline(list(engine.trace)[-6:], names)
        what = f"time {turn}: {first} of the prompt's {len(prompts[0])} tokens were run, {wanted} are needed"
        expect(first == wanted, what, picture)
        hit, hits = engine.trace[-1].counters.get("tokens_hit"), {1: 0, 2: 96, 3: 96 + 128}[turn]
        expect(hit == hits, f"time {turn}: of two prompts {hits} tokens were found: the trace's `tokens_hit` is {hit}")
        if turn == 2:
            prompts = [request.all_token_ids for request in requests]  # 66 tokens, of which 65 have been run


@milestone("Engine.stats")
def test_shared_pages_count_once(stage):
    """What several requests share counts once; what is cached and unused counts apart.

    Hint: A page on two paths is in two tables: subtract every table's path, then add the used nodes of the tree once.
    Second hint: The used nodes are those of tree.size that are not in `unused`. Used and reserved change by the same.
    """
    engine = stage.make_engine(attention="torch")
    engine.generate([stage.prompts(1, 40)[0]], endless(2))
    for _ in range(2):
        engine.add(stage.prompts(1, 40)[0], endless(9))
    engine.step()
    wanted = {"running": 2, "kv_tokens_used": 32 + 8 + 8, "kv_tokens_reserved": 32 + 16 + 16, "kv_tokens_cached": 0}
    wanted |= {"prefix_tokens_asked": 120, "prefix_tokens_hit": 64, "preemptions": 0, "waiting": 0}
    wanted |= {"kv_bytes_reserved": 64 * stage.token_bytes, "kv_tokens_capacity": engine.cache.capacity}
    expect_stats("two equal prompts", engine, wanted)
    for request_id in list(engine.requests):
        engine.abort(request_id)
    cached = engine.stats()["kv_tokens_cached"]
    expect(cached == 32, f"all have gone, and two full pages are cached: kv_tokens_cached is {cached}, not 32")
