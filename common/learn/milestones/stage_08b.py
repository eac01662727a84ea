"""Stages 08b and 08c: which worker gets a request, and what is done about loss."""

from types import SimpleNamespace

from ...errors import InvalidInput
from . import milestone
from .pictures import rows
from .stage_under_test import drain, endless, expect, expect_error, expect_rows, expect_tokens
from .workers import OPTIONS, NoLosses, make_fleet_engine


@milestone(
    "SeenPages.longest, SeenPages.add, choose_prefill, choose_decode",
    expected="A prompt goes where it is computed first: least queue plus tokens not cached. Decode goes where room is.",
    hint="`longest` counts whole pages from the root; `add` follows or inserts each, then releases and evicts.",
    second_hint="choose_decode: needed + len(held) <= available - load, and fewer held than max_running.",
)
def where_a_request_goes(stage):
    routing, messages = stage.routing, stage.messages

    def handle(number: int, load: int, available: int = 100):
        one = routing.Handle(number, "any")
        one.greet(messages.Hello("", 0.0, 1, 100, 4, 8, ""), 0.0)
        one.available = available
        one.order(messages.Order(f"w{number}", [], [], None, 0, 0), load)
        return one

    tokens = list(range(20))
    seen = routing.SeenPages(2, 4)
    for first in range(10):
        seen.add([first, 1, 2, 3])
    found = [seen.longest([9, 1, 2, 3]), seen.longest([9, 1, 5, 5]), seen.longest([0, 1]), seen.tree.size <= 4]
    expect_rows("longest of 9 1 2 3, of 9 1 5 5, of 0 1 (evicted); 4 pages", found, [4, 2, 0, True])
    a, b, c = handle(0, 6), handle(1, 50), handle(2, 5)

    def goes(wanted, text: list[int], why: str):
        chosen = routing.choose_prefill([a, b, c], text)
        costs = {f"worker {h.number}": h.load + len(text) - h.seen.longest(text) for h in (a, b, c) if h.open}
        said = f"{why}: {chosen and (chosen[0].number, chosen[1])}"
        expect(chosen == wanted, said, rows({"worker": costs, "cost": costs.values()}))

    goes((c, 20), tokens, "nothing is cached, and worker 2 has the shortest queue")
    a.seen.add(tokens[:9])
    goes((a, 12), tokens, "worker 0 has two pages of it: 6 + 12 < 5 + 20")
    b.seen.add(tokens)
    goes((a, 12), tokens, "worker 1 has all of it, and 50 tokens in its queue")
    c.hello, a.isolated = None, "x"
    goes((b, 0), tokens, "worker 2 is down, and worker 0 is kept for one request")
    expect(routing.choose_prefill([], tokens) is None, "without a worker, choose_prefill returns None")
    d, e = handle(0, 0, 30), handle(1, 0, 50)
    mine = [routing.choose_decode([d, e], 10), routing.choose_decode([d, e], 400)]
    expect(mine == [(e, 3), None], f"10 tokens go to worker 1, with 50 free pages, and 400 nowhere: {mine}")
    e.order(messages.Order("promised", [], [], None, 0, 0), 25)
    expect(routing.choose_decode([d, e], 10) == (d, 3), "25 of the 50 pages are promised: 30 are more than 25")
    for one in (d, e):
        one.held = {str(n): 1 for n in range(8)}
    expect(routing.choose_decode([d, e], 1) is None, "both hold max_running requests: None")


@milestone(
    "Router.accept, Router.step, Router.release, Router.begin, Router.enqueue, Router._route, Router._oldest, "
    "Router.order, Router._send_mail, Router._listen, Router._take, Router._arrived, Router._gain, Router._gather",
    expected="A request goes to a prefill worker, its pages to a decode worker, and its tokens come back, each once.",
    hint="queued, prefill, ready, transfer, decode: _route moves flights down, what _take reads moves them up.",
    second_hint="A gain says its place in the output: append its tokens from len(token_ids) - gain.first on.",
)
def the_router_hands_over(stage):
    written = stage.router.Recovery
    stage.router.Recovery = NoLosses
    try:
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
        expect_tokens(stage, engine, requests, stage.right_tokens(prompts, 10))
        expect(
            stage.routing.DECODE in seen, "once its pages have arrived a flight is in DECODE, and lets the sender go"
        )
        stats = engine.stats()
        expect(stats["handoffs"] == 5, f"five requests are five handoffs, not {stats['handoffs']}")
        workers = sorted({step.counters["worker"] for step in engine.trace})
        expect(workers == [0, 1, 2], f"two prefill workers and one for decode: steps ran on {workers}")
        gone = engine.add(prompts[0], endless(10))
        engine.step()
        engine.abort(gone.request_id)
        engine.step()
        held = [worker.held for worker in engine.fleet.workers]
        expect(not any(held) and not engine.flights, f"it was aborted, and workers still hold {held}")
        expect_error(InvalidInput, lambda: engine.add(prompts[0] * 13, endless(20)), "`accept` of what fits no worker")
    finally:
        stage.router.Recovery = written


@milestone(
    "Recovery.watch, Recovery.worker_back, Recovery.worker_lost, Recovery.lose, Recovery.begin_again, "
    "Recovery.compare, Recovery.transfer_failed, Router.fail",
    expected="A worker, mail or a transfer is lost: what it held begins again, and no token is missing or twice.",
    hint="worker_lost: `lose` each flight that the worker held. lose: parked pages elsewhere: READY; else begin_again.",
    second_hint="compare: what should be held (its mail was read) and is not is lost; what should not be is dropped.",
)
def losses_cost_time_and_no_token(stage):
    prompts = stage.prompts(4, 30)
    right = stage.right_tokens(prompts, 12)
    for lost in ("prefill worker", "decode worker", "mail", "transfer"):
        engine = make_fleet_engine(stage, suspects=False)
        requests = [engine.add(prompt, endless(12)) for prompt in prompts]
        if lost == "mail":
            engine.fleet.lose_mail = True
        if lost == "transfer":
            transport = engine.fleet.workers[1].transport
            transport.receive = lambda *arguments, transport=transport: fails_once(transport, arguments)
        while lost.endswith("worker") and sum(len(request.token_ids) for request in requests) < 3:
            engine.step()
        if lost.endswith("worker"):
            engine.fleet.die(int(lost.startswith("decode")))
        drain(engine)
        engine.check()
        expect_tokens(stage, engine, requests, right)
        stats = engine.stats()
        counts = [stats["workers_lost"], stats["failed_transfers"], stats["requests_resumed"] > 0]
        wanted = [int(lost.endswith("worker")), int(lost == "transfer"), lost in ("decode worker", "mail")]
        if lost != "prefill worker":  # what it had done already decides whether any begins again
            expect_rows(f"a lost {lost}: workers_lost, failed_transfers, any resumed", counts, wanted)
    engine = make_fleet_engine(stage, suspects=False, wait_seconds=0.0)
    engine.fleet.die(1, returns=False)
    engine.step()
    expect("decode" in engine.unavailable, f"no decode worker is up: `unavailable` is {engine.unavailable!r}")
    said, log = [], stage.recovery.log
    stage.recovery.log = SimpleNamespace(warning=lambda *line: said.append(line))
    engine.recovery.worker_back(engine.handles[0])
    stage.recovery.log = log
    expect(said, "`worker_back` must log a worker that is up again after a loss")
    request = engine.add(prompts[0], endless(4))
    engine.fleet.die(0, returns=False)
    drain(engine, 20)
    expect(request.finish_reason == "error", f"no worker is up: the request must end with an error, not {request}")


def fails_once(transport, arguments):
    """Return a transfer that fails; the next ones are as ever."""
    del transport.receive

    def done():
        raise ConnectionError("cut off in the middle")

    return SimpleNamespace(done=done, wait=lambda seconds: None, cancel=lambda: None, bytes=0, seconds=0.0)


@milestone(
    "Recovery.isolates, Recovery._run_suspect_alone",
    expected="A request under which workers keep dying runs alone, and ends with an error; all others end as ever.",
    hint="isolates: with SUSPECT_DEATHS or more the flight waits, QUEUED, and its key joins `suspects`.",
    second_hint="_run_suspect_alone: keep a worker for the first suspect, and order it there once the worker is empty.",
)
def a_request_that_kills_workers(stage):
    prompts = stage.prompts(4, 30)
    right = stage.right_tokens(prompts, 12)
    engine = make_fleet_engine(stage)
    others = [engine.add(prompt, endless(12)) for prompt in prompts[:2]]
    poison = engine.add(prompts[3], endless(12), request_id="poison")
    others.append(engine.add(prompts[2], endless(12)))
    engine.fleet.poison = "poison#"
    company = []
    for _ in range(300):
        if not engine.has_unfinished:
            break
        flight = next((one for one in engine.flights.values() if one.request is poison), None)
        holder = flight and (flight.decode or flight.prefill)
        if holder and flight.deaths >= 2:
            company.append(len(holder.held) - 1)
        engine.step()
        engine.check()
    expect(poison.finish_reason == "error", f"it has killed worker after worker, and is {poison}")
    expect_tokens(stage, engine, others, right[:3])
    expect(not any(company), f"a suspect runs alone; beside it ran {company}")
    expect(engine.stats()["workers_lost"] == 4, f"four workers die under it, not {engine.stats()['workers_lost']}")
