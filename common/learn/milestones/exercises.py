"""The checks of the exercises that have one, in order; each has the name of its solution in workshop/solutions."""

import json
import threading
from dataclasses import replace
from typing import Any

import httpx
import torch

from common.errors import InvalidInput
from common.loader.draft import load_draft_model
from common.serving.background import running

from . import Failed, exercise
from .paged import decoding, make_scheduler, owners
from .pictures import rows, timeline, tree
from .stage_under_test import (
    STORIES,
    commit,
    drain,
    endless,
    expect,
    expect_error,
    expect_rows,
    expect_steps,
    expect_tokens,
    letters,
    make_request,
)
from .workers import make_fleet_engine


@exercise("01-2")
def requests_take_turns(stage):
    """Each step serves the request that has waited longest for a token, and no token changes.

    Hint: `self.requests` is in order of arrival, and `schedule` takes the first. Where must it stand after its step?
    Second hint: If it has not ended, move it behind the others: self.requests[id] = self.requests.pop(id).
    """
    engine, prompts = stage.make_engine(), stage.prompts(4, 8)
    requests = [engine.add(prompt, endless(5)) for prompt in prompts[:3]]
    for _ in range(9):
        engine.step()
    requests.append(engine.add(prompts[3], endless(5)))
    for _ in range(4):
        engine.step()
    counts = [len(request.token_ids) for request in requests]
    picture = timeline(engine.trace, letters([request.request_id for request in requests]))
    said = f"D arrived before step 10, and after step 13 they have {counts} tokens, not 4 each and D one"
    expect(counts == [4, 4, 4, 1], said, picture)


MIN_PLACES = 64


@exercise("02-2")
def a_cache_that_grows(stage):
    """A cache has at most 64 places or twice the tokens it holds; each token is copied fewer than twice on average.

    Hint: `attend` knows when the new tokens no longer fit. Copy what is held then, for all layers at once.
    Second hint: Make room for max(needed, 2 * capacity) tokens: a prompt may need more than twice what is there.
    """
    for prompt_tokens, max_tokens in ((60, 210), (200, 4)):
        engine, [prompt] = stage.make_engine(), stage.prompts(1, prompt_tokens)
        request, copied, room = engine.add(prompt, endless(max_tokens)), 0, 0
        for held in range(prompt_tokens, prompt_tokens + max_tokens - 1):
            engine.step()
            before, room = room, engine.stats()["kv_tokens_reserved"]
            most = max(MIN_PLACES, 2 * held)
            expect(held <= room <= most, f"{held} tokens are held in {room} places: {held} to {most} are allowed")
            copied += held - 1 if before not in (0, room) else 0
        expect(copied < 2 * held, f"{copied} tokens were copied to hold {held}: each time the cache must double")
        engine.step()
        expect_tokens(stage, engine, [request])


SILENCE = 4  # seconds without a byte, after which a client gives up here; the comments are half a second apart


@exercise("03-3")
def a_client_that_waits_hears_from_the_server(stage):
    """While its request waits, a client gets a comment line for every half second without an event.

    Hint: `events` waits for the next piece. Wait with a time limit, and yield `: still waiting` and an empty line.
    Second hint: asyncio.wait([task], timeout=0.5) leaves the task alone when time is up; wait_for cancels it.
    """
    engine, may_step = stage.make_engine(), threading.Event()
    step = engine.step
    engine.step = lambda: may_step.wait() and step()
    body = {"prompt": STORIES[0], "max_tokens": 12, "stream": True}
    thread = stage.engine_thread.EngineThread(engine, max_queue=4)
    comments, texts = [], []
    with running(stage.server.Server(stage.server.create_app(thread), thread, "127.0.0.1", 0)) as url:
        try:
            with httpx.stream("POST", f"{url}/generate", json=body, timeout=SILENCE) as response:
                for line in response.iter_lines():
                    comments += [line] if line.startswith(":") else []
                    texts += [json.loads(line[6:])["text"]] if line.startswith("data: {") else []
                    if len(comments) == 2:
                        may_step.set()
        except httpx.ReadTimeout:
            raise Failed(f"after {len(comments)} comments the client got nothing for {SILENCE} seconds") from None
        finally:
            may_step.set()
        whole = httpx.post(f"{url}/generate", json=body | {"stream": False}, timeout=SILENCE).json()["text"]
    expect(len(comments) >= 2, f"{len(comments)} comments came while the engine stood still, not two")
    expect("".join(texts) == whole, f"the events together say {''.join(texts)!r}, not {whole!r}")


MAX_PASSED = 8


def admitted(scheduler: Any, steps: list[dict[str, int | list[int]]]) -> list[str]:
    """Return the names of requests in the order of their admission; each ends with the step that runs its prompt.

    steps: the prompts that arrive before each step by the names of their requests, as tokens or how many.
    """
    order = []
    for arriving in steps:
        for name, prompt in arriving.items():
            scheduler.add(make_request(name, prompt, 1))
        chunks = scheduler.schedule()
        commit(scheduler, chunks)
        for chunk in chunks:
            order.append(chunk.sequence.request.request_id)
            scheduler.remove(chunk.sequence.request)
        scheduler.check()
    return order


def expect_bound(order: list[str], first: str) -> None:
    """Fail if more than MAX_PASSED requests have passed one of those that came first."""
    for place, name in enumerate(first):
        passed = order.index(name) - place if name in order else len(order)
        said = f"each step brings one that is preferred to {first}: {passed} of them pass {name}"
        expect(passed <= MAX_PASSED, said, rows({"admitted": order[:24]}))


@exercise("04-3")
def shortest_first_within_a_bound(stage):
    """The shortest waiting prompt is admitted first, but at most 8 requests that arrived later pass another.

    Hint: `_admit` takes the front of `waiting`. Count for each request how many that stood behind it were admitted.
    Second hint: The oldest has been passed most often: is it at 8, it is next. Move the next one to the front.
    """
    lengths = {"A": 40, "B": 5, "C": 20, "D": 10, "E": 30, "F": 60}
    order, wanted = admitted(stage.scheduler.Scheduler(1, 64), [lengths, *[{}] * 5]), ["B", "D", "C", "E", "A", "F"]
    picture = rows({"request": lengths, "tokens": lengths.values(), "wanted": wanted, "yours": order})
    expect(order == wanted, f"one prompt runs at a time, in the order {', '.join(order)}", picture)
    steps = [{"A": 40, "B": 50, "0": 5}, *({f"{number}": 5} for number in range(1, 40))]
    expect_bound(admitted(stage.scheduler.Scheduler(1, 64), steps), "AB")


@exercise("04-5")
def short_prompts_pass(stage):
    """Prompts that fit whole into half of the budget run before the oldest one, which gets the rest of it.

    Hint: In `schedule`: _admit until it returns None, before you decide in which order the prompts run.
    Second hint: Of all but the oldest, shortest first, take what half of the budget buys; the others stay in order.
    """
    scheduler = stage.scheduler.Scheduler(4, 64)
    first = [{"A": 64}, {"A": 34, "B": 10, "C": 20}]
    later = [*[{"B": 1, "C": 1, "A": 62}] * 3, {"B": 1, "C": 1, "A": 16, "D": 46}]
    expect_steps(scheduler, [{"A": 300}, {"B": 10, "C": 20, "D": 100}], first + later)
    scheduler.check()


@exercise("04-6")
def tenants_take_turns(stage):
    """Of those that wait, the first request of each tenant is admitted first, then the second of each, and so on.

    Hint: Put `waiting` in order at the start of `schedule`. Which of those that wait is its tenant's first?
    Second hint: Count how many of its tenant stand before each request; sort by that, which keeps equals in order.
    """
    scheduler = stage.scheduler.Scheduler(1, 64)
    tenants, arriving = dict(zip("ABCDEFG", "xxxyxzy", strict=True)), {name: 4 for name in "ABCDEFG"}
    requests = {name: make_request(name, tokens) for name, tokens in arriving.items()}
    for name, request in requests.items():
        request.params = replace(request.params, tenant=tenants[name])
        scheduler.add(request)
    order = []
    for _ in requests:
        chunks = scheduler.schedule()
        commit(scheduler, chunks)
        for request in [chunk.sequence.request for chunk in chunks]:
            order.append(request.request_id)
            scheduler.remove(request)
    expect_rows("admitted, one at a time", order, "ADFBGCE", arrived=tenants, tenant=tenants.values())


@exercise("05-3")
def the_cheapest_gives_way(stage):
    """When no page is free, the request with the fewest tokens computed returns its pages, never the oldest.

    Hint: A request that returns its pages must not run in this step. Has it got its chunk already when another asks?
    Second hint: Extend all decodes before you build the first chunk. Queue what you preempt by its timings.arrival.
    """
    scheduler = make_scheduler(stage, pages=11, page_size=16)
    for name, tokens in {"A": 16, "B": 14, "C": 30, "D": 112}.items():
        decoding(stage, scheduler, name, tokens)
    scheduler.waiting.append(make_request("F", 3))
    before, chunks = owners(scheduler), scheduler.schedule()
    picture = f"before\n{before}\nafter `schedule`\n{owners(scheduler)}"
    said = "A and D need a page: B has 14 tokens computed, then C has the fewest, with 30"
    left = f"in your `running` are {', '.join(scheduler.running)}, and wanted are A, D"
    expect(list(scheduler.running) == ["A", "D"], f"{said}; {left}", picture)
    ran = [chunk.sequence.request.request_id for chunk in chunks]
    expect(ran == ["A", "D"], f"{', '.join(ran)} have chunks, and B and C have given their pages back", picture)
    expect_rows("the queue, in order of arrival", [request.request_id for request in scheduler.waiting], "BCF")


@exercise("05-5")
def a_row_in_few_bits(stage):
    """`quantize_row(x, bits)` returns whole numbers in int8, their scale, and the most by which a number changes.

    Hint: The scale makes the largest number of the row 2 ** (bits - 1) - 1; the nearest whole number is half away.
    Second hint: x.abs().max() / most; (x / scale).round().to(torch.int8); scale / 2. A row of zeros divides by zero.
    """
    quantize_row = getattr(stage.kv_cache, "quantize_row", None)
    expect(quantize_row is not None, "kv_cache.py has no function `quantize_row`")
    by_hand = torch.tensor([0.6, -1.27, 0.02, 0.0, 1.0, -0.33, 0.95, -0.01])
    for x in (by_hand, 300 * torch.randn(64, generator=torch.Generator().manual_seed(0)), torch.zeros(8)):
        for bits in (8, 4):
            numbers, scale, bound = quantize_row(x, bits)
            most, each = 2 ** (bits - 1) - 1, x[:8].tolist()
            picture = rows({"x": [f"{one:.2f}" for one in each], "yours": numbers[:8].tolist()})
            expect(numbers.dtype == torch.int8, f"the numbers are {numbers.dtype}, not torch.int8", picture)
            expect(int(numbers.abs().max()) <= most, f"{bits} bits end at {most}, and a number is beyond", picture)
            changed, half = float((numbers * scale - x).abs().max()), float(x.abs().max()) / most / 2
            says = f"in {bits} bits a number changes by {changed:.4f}, your bound is {bound:.4f}"
            expect(changed <= bound + 1e-4 * half, says, picture)
            expect(bound <= 1.0001 * half + 1e-9, f"{says}, and no number need change by more than {half:.4f}", picture)


@exercise("06-2")
def the_most_recently_used_goes_first(stage):
    """The most recently used page that has no children goes first; documents asked in turn are found again.

    Hint: The youngest of `unused` may be the parent of pages that stay: without it they could never be found.
    Second hint: Walk `unused` from its end, reversed(self.unused), to the first node without children.
    """
    cached = stage.prefix_tree.PrefixTree()
    a = cached.insert([], [1], 0)
    b, c = cached.insert([a], [2], 1), cached.insert([], [3], 2)
    for path in ([c], [a, b]):
        cached.release(path)
    picture = tree(cached.root.children)
    order = []
    while cached.unused:
        order.append(cached.evict())
    expect(order == [1, 0, 2], f"pages 2, 1 and 0, the parent of 1, were released, and evicted as {order}", picture)

    documents = stage.prompts(3, 81)
    engine = stage.make_engine(kv_memory=12 * 16 * stage.token_bytes, attention="torch")  # Two documents fit.
    found = []
    for number in range(9):
        [request] = engine.generate([documents[number % 3]], endless(4))
        engine.check()
        found.append(request.cached_tokens)
        expect_tokens(stage, engine, [request])
    picture = rows({"document": "ABCABCABC", "tokens found": found})
    expect(sum(found) > 3 * 80, f"{sum(found)} tokens were found when 12 pages had to do for three of 6", picture)


@exercise("06-5")
def what_is_cached_goes_first(stage):
    """The waiting request that finds most in the tree is admitted first, but at most 8 pass another.

    Hint: Look without touching: `follow` counts a user for each page it finds. Walk from `tree.root` by `children`.
    Second hint: Otherwise it is exercise 3 of lesson 04: the oldest, if it was passed 8 times, else the best.
    """
    text = list(range(20, 32))
    waiting = {"B": list(range(40, 52)), "C": [*text[:4], *range(60, 68)], "D": [*text, 1, 2], "E": [*text[:8], 3, 4]}
    scheduler = make_scheduler(stage, pages=40, max_running=1)
    order = admitted(scheduler, [{"A": text}, waiting, {}, {}, {}])
    picture = rows({"request": waiting, "in the tree": [0, 4, 12, 8], "wanted": "DECB", "yours": order[1:]})
    expect(order == [*"ADECB"], f"A has run, and the tree has its tokens; then {', '.join(order[1:])} run", picture)
    steps = [{"A": text}, {"B": waiting["B"], "C": list(range(80, 92)), "0": text}]
    order = admitted(make_scheduler(stage, pages=40, max_running=1), [*steps, *({f"{n}": text} for n in range(1, 40))])
    expect_bound(order[1:], "BC")


@exercise("07-2")
def look_up_first(stage):
    """What lookup finds is drafted without the draft model; where it finds nothing, the draft model drafts.

    Hint: Both drafters prepare the chunks that they are given. Which chunks does the draft model get?
    Second hint: Give `DraftModel` a PromptLookup, which prepares first. Where it finds nothing, give back the room.
    """
    ran: list[int] = []  # tokens in each pass of the draft model
    model = load_draft_model("auto", stage.loaded).model  # the engine's own: it is loaded once
    model.register_forward_hook(lambda module, inputs, output: ran.append(len(inputs[0])))
    engine = stage.make_engine(num_draft_tokens=4, attention="torch")
    ran.clear()
    for name, prompt in {"A": [5, 6, 7, 8, 9, 5, 6], "B": [15, 16, 17, 18, 19, 20, 21]}.items():
        decoding(stage, engine.scheduler, name, prompt)  # with 7 as the newest token
    a, b = engine.scheduler.schedule(engine.drafter)
    engine.drafter.draft([a, b])
    expect_rows("draft tokens of A, which has had 5 6 7 before", a.draft.token_ids, [8, 9, 5, 6])
    expect(len(b.draft.token_ids) == 4, f"lookup finds nothing in B, and it got {len(b.draft.token_ids)} draft tokens")
    expect(sum(ran) == 8 + 3, f"the draft model ran {sum(ran)} tokens: 11 are B's 8 tokens and 3 that it has drafted")


@exercise("08-2")
def a_worker_is_drained(stage):
    """A worker that is drained ends what it holds and gets nothing new; the last of its kind stays open.

    Hint: Handle.open says whether one more request may go there, and both functions that choose ask it.
    Second hint: Give Handle an attribute: each life of a worker has a new Handle, so a new process gets orders again.
    """
    engine = make_fleet_engine(stage, prefill=1, decode=2)
    expect(hasattr(engine, "drain"), "the engine has no method `drain(number)`")
    prompts = stage.prompts(8, 20)
    requests = [engine.add(prompt, endless(12)) for prompt in prompts[:4]]
    worker = engine.handles[2]
    drain(engine, until=lambda: worker.held)
    before = set(worker.held)
    expect(before, "decode worker 2 has held nothing")
    engine.drain(2)
    requests += [engine.add(prompt, endless(12)) for prompt in prompts[4:]]
    while engine.has_unfinished:
        engine.step()
        new = set(worker.held) - before
        held = {one.number: len(one.held) for one in engine.handles}
        picture = rows({"worker": held, "requests": held.values()})
        expect(not new, f"worker 2 was drained when it held {sorted(before)}, and got {sorted(new)}", picture)
    expect_tokens(stage, engine, requests)
    expect(not engine.stats()["requests_resumed"], "a request began again: what the worker held it must end")
    expect_error(InvalidInput, lambda: engine.drain(1), "`drain(1)`, of the last decode worker,")
