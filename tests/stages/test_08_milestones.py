"""Milestones of stage 08: workers hand pages over, the router finds each request its worker, and losses are mended."""

from queue import SimpleQueue
from types import SimpleNamespace
from unittest import mock

import torch

from common.errors import InvalidInput
from common.learn.milestones import milestone
from common.learn.milestones.paged import decoding, make_scheduler, owners
from common.learn.milestones.pictures import rows
from common.learn.milestones.stage_under_test import (
    drain,
    endless,
    expect,
    expect_error,
    expect_rows,
    expect_steps,
    expect_tokens,
    make_request,
)
from common.learn.milestones.workers import OPTIONS, make_fleet_engine, make_worker, order
from common.stages import load_engine


@milestone("SeenPages.longest, SeenPages.add, choose_for_prompt, choose_for_decode")
def test_where_a_request_goes(stage):
    """A prompt goes where it is done first: queue, tokens not cached, requests there. Decode goes where room is.

    Hint: `longest` counts whole pages from the root; `add` follows or inserts each, then releases and evicts.
    Second hint: choose_for_decode: of the open ones, those with needed + len(held) <= available - load.
    """
    routing, messages, tokens = stage.routing, stage.messages, list(range(20))
    seen = routing.SeenPages(2, 4)
    for first in range(10):
        seen.add([first, 1, 2, 3])
    found = [seen.longest([9, 1, 2, 3]), seen.longest([9, 1, 5, 5]), seen.longest([0, 1]), seen.tree.size <= 4]
    expect_rows("longest of 9 1 2 3, of 9 1 5 5, of 0 1 (evicted); 4 pages", found, [4, 2, 0, True])

    def handle(number: int, load: int, held: int, cached: int = 0, available: int = 100):
        one = routing.Handle(number, "any", messages.Hello("", 0.0, 1, 100, 4, 8, "", ""))
        one.available = available
        one.order(messages.Order("0", [], [], None, 0, 0), load)
        one.held |= {str(n): 1 for n in range(held)}
        one.seen.add(tokens[:cached])
        return one

    prompt, decode = routing.choose_for_prompt, routing.choose_for_decode
    # what chooses, for what; of each worker tokens in its queue, requests there, tokens cached, pages available; wanted
    cases = {
        "worker 1 has the shorter queue": (prompt, tokens, [(6, 1), (5, 1)], (1, 20)),
        "worker 0 has two pages of it: 6 + 12 + 1 < 5 + 20 + 1": (prompt, tokens, [(6, 1, 9), (5, 1)], (0, 12)),
        "worker 0 holds max_running requests": (prompt, tokens, [(6, 8, 9), (5, 1)], (1, 20)),
        "6 + 1 + 1 < 5 + 1 + 3, since each request takes a token of a step": (prompt, [9], [(6, 1), (5, 3)], (0, 1)),
        "worker 1 has more pages": (decode, 10, [(0, 1, 0, 30), (0, 1, 0, 50)], (1, 3)),
        "25 of the 50 pages are promised": (decode, 10, [(0, 1, 0, 30), (25, 1, 0, 50)], (0, 3)),
        "24 pages for 96 tokens, and 6 for the requests there, are 30": (decode, 96, [(0, 6, 0, 30)], (0, 24)),
        "25 pages for 97 tokens, and 6, are more than 30": (decode, 97, [(0, 6, 0, 30)], None),
        "the only worker holds max_running requests": (decode, 1, [(0, 8)], None),
    }
    for why, (choose, what, workers, wanted) in cases.items():
        chosen = choose([handle(number, *one) for number, one in enumerate(workers)], what)
        mine = chosen and (chosen[0].number, chosen[1])
        picture = rows({"worker": range(len(workers)), "queue, requests, cached, pages": workers})
        expect(mine == wanted, f"`{choose.__name__}` returns worker and cost {mine}, not {wanted}: {why}", picture)


@milestone(
    "Scheduler.park, Scheduler.reserve, Scheduler.resume, Scheduler.give_up, Scheduler.release_given_up, "
    "Scheduler.holding, Scheduler.remove, Scheduler.check"
)
def test_parked_and_resumed(stage):
    """A parked or reserved request holds its pages and does not run; resume lets a reserved one run.

    Hint: park moves a sequence from `running` to `parked`, resume one from `reserved` to `running`; remove finds all.
    Second hint: resume: all but the newest token is computed: num_tokens - 1. Preempted requests come first.
    """
    scheduler = make_scheduler(stage, pages=8, max_running=3)
    a = decoding(stage, scheduler, "A", 10)
    said = scheduler.park(a.request)
    expect(said is a and scheduler.parked == {"A": a} and not scheduler.running, "A must be parked, and not run")
    b = make_request("B", 9, 40)
    b.append(7)
    two = scheduler.reserve(b)
    expect(two is not None and scheduler.reserved.get("B") is two, "B must be in `reserved`, with its pages")
    expect({one.request.request_id for one in scheduler.holding} == {"A", "B"}, "`holding` is all that have pages")
    scheduler.resume(b)
    said = f"9 of B's 10 tokens are computed, not {two.computed}"
    expect(list(scheduler.running) == ["B"] and two.computed == 9, said)
    scheduler.check()
    scheduler.waiting.append(make_request("D", 3))
    expect(scheduler.reserve(make_request("E", 1)) is None, "D was here first, and waits: `reserve` returns None")
    scheduler.waiting.clear()
    full = make_scheduler(stage, pages=40, max_running=2)
    full.reserve(make_request("A", 3))
    decoding(stage, full, "B", 3)
    expect(full.reserve(make_request("C", 3)) is None, "max_running is 2, A is reserved and B runs: no place for C")
    scheduler.remove(a.request)
    free = len(scheduler.allocator.free)
    expect(free == 5 and not scheduler.parked, f"A is removed: 5 pages must be free, not {free}", owners(scheduler))
    late = make_request("F", 9)
    scheduler.reserve(late)
    given_up = scheduler.give_up(late)
    scheduler.check()
    scheduler.release_given_up(given_up)
    free = scheduler.allocator.available
    expect(free == 5, f"F's 3 pages are free once nothing arrives in them any more: 5, not {free}", owners(scheduler))
    scheduler.park(b)
    scheduler.allocator.extend(two.page_table, 32)
    expect_error(AssertionError, scheduler.check, "`check`, with too many pages for a parked sequence,")


@milestone("Scheduler.schedule, Scheduler._let_short_prompts_pass")
def test_short_prompts_pass(stage):
    """Prompts that fit into half of the budget pass the oldest, which gets as many tokens as they do.

    Hint: Admit what fits into half of the budget; of all but the first, in order of length, those within it pass.
    Second hint: With nothing begun, admit any. If the oldest does not fit behind them: max(2 * taken, budget / 4).
    """
    scheduler = make_scheduler(stage, pages=200, budget=64)
    wanted = [{"A": 64}, {"B": 10, "C": 20, "A": 30}, {"B": 1, "C": 1, "A": 62}]
    expect_steps(scheduler, [{"A": 300}, {"B": 10, "C": 20, "D": 100}], wanted)
    expect(make_scheduler(stage, pages=8).schedule() == [], "with nothing to do, `schedule` returns an empty list")


@milestone("LocalTransfer.__init__, LocalTransfer.done")
def test_pages_travel(stage):
    """The offered pages, without the first `skip`, are copied into the reserved ones, in all pools.

    Hint: pool[pages] = from_pool[offered], for each pool; `offered` begins behind the first `skip`.
    Second hint: An offer that was withdrawn is not in source.offers: `done` then raises ConnectionError.
    """
    sender, receiver = stage.kv_transport.LocalTransport(), stage.kv_transport.LocalTransport()
    pages = torch.arange(1.0, 7.0)[:, None]  # page 0 holds 1, page 1 holds 2
    sender.register([pages, 10 * pages])
    receiver.register([torch.zeros_like(pages), torch.zeros_like(pages)])
    ticket = sender.send("A", [5, 0, 3])
    transfer = receiver.receive(ticket, 1, [2, 4], lambda: None)
    expect(transfer.done() is True, "a copy within a process is done at once: `done` returns True")
    for pool, page in zip(receiver.pools, (1, 10), strict=True):
        wanted = [0, 0, page, 0, 4 * page, 0]
        what = "what is in the pages: that of 0 and 3, of those offered"
        expect_rows(what, pool[:, 0].tolist(), wanted, page=range(6))
    expect(transfer.bytes == 16, f"2 pages of 4 bytes in 2 pools are 16 bytes, not {transfer.bytes}")
    sender.abort("A")
    late = receiver.receive(ticket, 0, [1, 2, 4], lambda: None)
    expect_error(ConnectionError, late.done, "`done`, of an offer that was withdrawn,")


@milestone("Worker._start_transfers, Worker._finish_transfers, Worker._drop")
def test_a_decode_worker_fetches(stage):
    """Pages are reserved, then fetched into; when they are there the request runs. What fails is told.

    Hint: While the first that waits finds room: reserve, and receive behind the pages that the own tree has.
    Second hint: _finish_transfers: resume, and report.arrived; after a ConnectionError _drop, and report.failed.
    """
    there, here = make_worker(stage), make_worker(stage)
    prompt = stage.prompts(1, 40)[0]
    there.engine.pools[0].normal_()
    ticket = there.transport.send("A", [7, 1, 4])
    request = order(stage, "A", prompt, [9], ticket=ticket).request(frozenset())
    here.waiting_for_room.append((request, ticket))
    here._start_transfers()
    expect("A" in here.in_transfer and "A" in here.engine.requests, "A must be in transfer and in engine.requests")
    expect("A" in here.scheduler.reserved, "the pages of A must be reserved before they are fetched")
    report = stage.messages.Report()
    here._finish_transfers(report)
    sequence = here.scheduler.running.get("A")
    expect(sequence is not None and not here.in_transfer, "the pages are there: A must run, and be in transfer no more")
    pages = sequence.page_table.pages
    same = [torch.equal(here.engine.pools[0][mine], there.engine.pools[0][page])
            for mine, page in zip(pages, [7, 1, 4], strict=False)]  # fmt: skip
    expect_rows("pages that arrived as they were sent", same, [True] * 3, sent=[7, 1, 4], into=pages[:3])
    expect([one.key for one in report.arrived] == ["A"], f"the report must tell of A's arrival: {report.arrived}")
    gone = there.transport.send("B", [2])
    there.transport.abort("B")
    lost = order(stage, "B", prompt[:10], [9], ticket=gone).request(frozenset())
    here.waiting_for_room.append((lost, gone))
    here._start_transfers()
    here._finish_transfers(report)
    expect([key for key, _ in report.failed] == ["B"], f"B's pages were withdrawn: report.failed is {report.failed}")
    expect("B" not in here.scheduler.reserved and not here.in_transfer, "what could not be fetched must hold nothing")
    here._drop("A")
    here._drop("unknown")
    held = here.scheduler.allocator
    empty = held.available == held.num_pages and not here.engine.requests
    expect(empty, "after `_drop` A holds nothing", owners(here.scheduler))


@milestone("Worker.run, Worker.turn, Worker.read, Worker._take, Worker._step, Worker._hand_over, WorkerEngine.step")
def test_a_worker_works(stage):
    """A prefill worker parks a prompt after its first token, then offers its pages; a decode worker goes on.

    Hint: read: drops first, then orders it does not hold yet; what can never fit goes to `report.failed`.
    Second hint: _step parks. _hand_over: read_ahead, send the computed pages; report.parked has (key, ticket).
    """
    prompt = stage.prompts(1, 40)[0]
    [alone] = load_engine("02")(stage.loaded).generate([prompt], endless(8))
    right = alone.token_ids
    prefill, decode = make_worker(stage), make_worker(stage)
    mail = stage.messages.Mail
    told = prefill.turn()
    idle = told.available == 24 and told.record is None
    expect(idle, f"an idle worker tells how many pages it has: {told.available}")
    for _ in range(2):  # mail may come twice
        prefill.read(mail(1, [order(stage, "A", prompt, hand_over=True)], []))
    prefill.read(mail(2, [order(stage, "X", prompt * 11, max_tokens=90)], []))
    report = prefill.turn(heartbeat=True)
    expect_rows("tokens of the prefill worker", gained(report), right[:1])
    expect([key for key, _ in report.failed] == ["X"], f"X never fits, and `failed` is {report.failed}")
    expect(report.record is not None, "a turn with a step must report its record")
    what = "the first token leaves at once, and A's pages are offered in the turn behind it"
    beat = report.heartbeat
    expect(beat and (beat.mail, beat.held, beat.parked) == (2, {"A"}, set()), f"{what}: the heartbeat says {beat}")
    report = prefill.turn(heartbeat=True)
    expect([key for key, _ in report.parked] == ["A"], f"{what}, which reports {report.parked}")
    expect(report.heartbeat.parked == {"A"}, f"A is on offer, and the heartbeat says {report.heartbeat}")
    ticket = report.parked[0][1]
    mailbox = SimpleQueue()
    mailbox.put(mail(1, [order(stage, "A", prompt, right[:1], ticket=ticket)], []))
    hello, *reports = until_finished(decode.run(mailbox))
    expect(isinstance(hello, stage.messages.Hello), f"`run` first says hello, and yields {hello}")
    expect_rows("tokens of the decode worker", gained(*reports), right[1:])
    ran = [work.tokens for one in reports if one.record for work in one.record.works]
    expect(ran == [1] * 7, f"the prompt came with its pages: each step runs 1 token, and they ran {ran}")
    prefill.read(mail(3, [], ["A"]))
    free = prefill.turn().available
    expect(free == 24 and not prefill.held, f"the router has dropped A: all 24 pages must be available, not {free}")
    decode.check()


def gained(*reports) -> list[int]:
    return [token for report in reports for gain in report.gains for token in gain.token_ids]


def until_finished(news):
    """Yield what a worker says, up to the report in which a request has finished."""
    for one in news:
        yield one
        if any(gain.finished for gain in getattr(one, "gains", ())):
            return


@milestone(
    "Router.accept, Router.step, Router.release, Router._begin, Router._enqueue, Router._oldest, "
    "Router._route, Router._order, Router._send_mail, Router._listen, Router._take, Router._arrived, "
    "Router._gain, Router._gather, Router._worker_up, Router._end_what_waits_too_long"
)
def test_the_router_hands_over(stage):
    """A request goes to a prefill worker, its pages to a decode worker, and its tokens come back, each once.

    Hint: queued, prefill, ready, transfer, decode: _route moves flights down, what _take reads moves them up.
    Second hint: A gain says its place in the output: append its tokens from len(token_ids) - gain.first on.
    """
    engine = stage.make_engine(prefill=2, decode=1, **OPTIONS)
    prompts = stage.prompts(5, 30)
    requests, seen = [engine.add(prompt, endless(10)) for prompt in prompts], set()
    for _ in range(400):
        if not engine.has_unfinished:
            break
        engine.step()
        engine.check()
        seen |= {flight.phase for flight in engine.flights.values()}
    phases = {one.request.request_id: one.phase for one in engine.flights.values()}
    expect(not engine.has_unfinished, f"after 400 steps these are not finished: {phases}")
    expect_tokens(stage, engine, requests)
    expect(stage.routing.DECODE in seen, "once its pages have arrived a flight is in DECODE, and lets the sender go")
    stats = engine.stats()
    expect(stats["handoffs"] == 5, f"five requests are five handoffs, not {stats['handoffs']}")
    gone = engine.add(prompts[0], endless(10))
    engine.step()
    engine.abort(gone.request_id)
    engine.step()
    held = [worker.held for worker in engine.fleet.workers]
    expect(not any(held) and not engine.flights, f"it was aborted, and workers still hold {held}")
    expect_error(InvalidInput, lambda: engine.add(prompts[0] * 13, endless(20)), "`accept` of what fits no worker")
    engine.handles[2] = stage.routing.Handle(2, "decode")
    engine.step()
    expect("decode" in engine.unavailable, f"worker 2 is down: `unavailable` is {engine.unavailable!r}")


@milestone(
    "Router._worker_lost, Router._lose, Router._begin_again, Router._reconcile, Router._transfer_failed, Router._fail",
    seconds=40,
)
def test_losses_cost_time_and_no_token(stage):
    """A worker, a message or a transfer is lost: what it held begins again, and no token is missing or twice.

    Hint: _worker_lost: `_lose` each flight that it held. _lose: parked pages elsewhere: READY; else _begin_again.
    Second hint: _reconcile: what should be held (its mail was read) and is not is lost; what should not be, dropped.
    """
    prompts = stage.prompts(4, 30)
    for lost in ("prefill worker", "decode worker", "mail", "transfer", "report", "nothing, and all is said twice"):
        engine = make_fleet_engine(stage)
        fleet, transport = engine.fleet, engine.fleet.workers[1].transport
        fleet.lose_mail, fleet.repeats = lost == "mail", lost.endswith("twice")
        fleet.unsaid = {0, 1} if lost == "report" else set()
        requests = [engine.add(prompt, endless(5)) for prompt in prompts]
        if lost == "transfer":
            transport.receive = lambda *_, transport=transport: fails_once(transport)
        if lost.endswith("worker"):
            drain(engine, until=lambda requests=requests: sum(len(one.token_ids) for one in requests) >= 3)
            fleet.die(int(lost.startswith("decode")))
        drain(engine)
        engine.check()
        expect_tokens(stage, engine, requests)
        stats = engine.stats()
        counts = [stats["workers_lost"], stats["failed_transfers"], stats["requests_resumed"] > 0]
        wanted = [int(lost.endswith("worker")), int(lost == "transfer"), lost in ("decode worker", "mail", "report")]
        if lost != "prefill worker":  # Its progress decides whether any request begins again.
            expect_rows(f"a lost {lost}: workers_lost, failed_transfers, any resumed", counts, wanted)
    engine = make_fleet_engine(stage, wait_seconds=0.0)
    engine.fleet.die(1, returns=False)
    engine.step()
    request = engine.add(prompts[0], endless(4))
    engine.fleet.die(0, returns=False)
    drain(engine, 20)
    expect(request.finish_reason == "error", f"no worker is up: the request must end with an error, not {request}")
    engine = make_fleet_engine(stage)
    others = [engine.add(prompt, endless(5)) for prompt in prompts[:3]]
    drain(engine, until=lambda: all(len(one.token_ids) >= 3 for one in others))
    poison = engine.add(prompts[3], endless(5), request_id="poison")
    engine.fleet.poison = "poison#"
    drain(engine)
    expect(poison.finish_reason == "error", f"it has killed worker after worker, and is {poison}")
    expect_tokens(stage, engine, others)
    lost = engine.stats()["workers_lost"]
    expect(lost == stage.router.MAX_DEATHS, f"{stage.router.MAX_DEATHS} workers die under it, not {lost}")


def fails_once(transport):
    """Return a transfer that fails; the next ones are as ever."""
    del transport.receive
    ends = mock.Mock(side_effect=ConnectionError("cut off in the middle"))
    return SimpleNamespace(done=ends, wait=lambda seconds: None, cancel=lambda: None, bytes=0, seconds=0.0, final=True)
