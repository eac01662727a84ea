"""Stage 08a: one worker computes a prompt, another goes on, and the pages travel between them."""

from queue import SimpleQueue

import torch

from . import milestone
from .paged import decoding, make_scheduler, owners
from .pictures import page_map, rows
from .stage_under_test import expect, expect_error, expect_rows, make_request
from .workers import make_worker, order


@milestone(
    "Scheduler.park, Scheduler.reserve, Scheduler.resume, Scheduler.holding, Scheduler.remove, Scheduler.check",
    expected="A parked or reserved request holds its pages and does not run; resume lets a reserved one run.",
    hint="park moves a sequence from `running` to `parked`, resume one from `reserved` to `running`; remove finds all.",
    second_hint="resume: all but the newest token is computed: num_tokens - 1. Preempted requests come first.",
)
def parked_and_resumed(stage):
    scheduler = make_scheduler(stage, pages=8, max_running=3)
    a = decoding(stage, scheduler, "A", 10)
    said = scheduler.park(a.request)
    expect(said is a and scheduler.parked == {"A": a} and not scheduler.running, "A must be parked, and not run")
    b = make_request("B", 9, 40)
    b.append(7)
    two = scheduler.reserve(b)
    expect(two is not None and scheduler.reserved.get("B") is two, "B must be in `reserved`, with its pages")
    expect(len(two.page_table.pages) == 3, "B has 10 tokens, which need 3 pages", owners(scheduler))
    expect({one.request.request_id for one in scheduler.holding} == {"A", "B"}, "`holding` is all that have pages")
    expect(scheduler.reserve(make_request("C", 16)) is None, "2 pages are free, and C needs 4: `reserve` returns None")
    scheduler.resume(b)
    expect(
        list(scheduler.running) == ["B"] and two.computed == 9, f"9 of B's 10 tokens are computed, not {two.computed}"
    )
    scheduler.check()
    scheduler.waiting.append(make_request("D", 3))
    expect(scheduler.reserve(make_request("E", 1)) is None, "D was here first, and waits: `reserve` returns None")
    scheduler.waiting.clear()
    full = make_scheduler(stage, pages=40, max_running=2)
    full.reserve(make_request("A", 3))
    decoding(stage, full, "B", 3)
    expect(full.reserve(make_request("C", 3)) is None, "max_running is 2, A is reserved and B runs: no place for C")
    full.park(full.running["B"].request)
    expect(full.reserve(make_request("C", 3)) is not None, "B is parked and will not run here: C has a place")
    scheduler.remove(a.request)
    free = len(scheduler.allocator.free)
    expect(free == 5 and not scheduler.parked, f"A is removed: 5 pages must be free, not {free}", owners(scheduler))
    scheduler.park(b)
    scheduler.allocator.extend(two.page_table, 32)
    expect_error(AssertionError, scheduler.check, "`check`, with too many pages for a parked sequence,")


@milestone(
    "Scheduler.schedule, Scheduler._let_short_prompts_pass",
    expected="Prompts that fit into half of the budget pass the oldest, which gets as many tokens as they do.",
    hint="Admit all there is room for; of all but the first, in order of length, those within budget // 2 pass.",
    second_hint="If the oldest does not fit behind them, the budget becomes max(2 * taken, budget // 4).",
)
def short_prompts_pass(stage):
    scheduler = make_scheduler(stage, pages=200, budget=64)
    steps = ({"A": 300}, {"B": 10, "C": 20, "D": 100}, {})
    wanted = [{"A": 64}, {"B": 10, "C": 20, "A": 30}, {"B": 1, "C": 1, "A": 62}]
    for number, (arrive, right) in enumerate(zip(steps, wanted, strict=True), 1):
        for name, tokens in arrive.items():
            scheduler.add(make_request(name, [10 + ord(name)] * tokens, 40))
        chunks = scheduler.schedule()
        mine = {one.sequence.request.request_id: len(one.token_ids) for one in chunks}
        picture = rows({"prompt": "ABCD", "tokens": [300, 10, 20, 100], "wanted": [right.get(n, "·") for n in "ABCD"],
                        "yours": [mine.get(n, "·") for n in "ABCD"]})  # fmt: skip
        expect(mine == right and [*mine] == [*right], f"step {number}: the order is {[*mine]}, not {[*right]}", picture)
        for one in chunks:
            if one.completes:
                one.sequence.request.append(7)
    expect(make_scheduler(stage, pages=8).schedule() == [], "with nothing to do, `schedule` returns an empty list")


@milestone(
    "LocalTransfer.__init__, LocalTransfer.done",
    expected="The offered pages, without the first `skip`, are copied into the reserved ones, in all pools and layers.",
    hint="pool[:, pages] = from_pool[:, offered], for each pool; `offered` begins behind the first `skip`.",
    second_hint="An offer that was withdrawn is not in source.offers: `done` then raises ConnectionError.",
)
def pages_travel(stage):
    sender, receiver = stage.kv_transport.LocalTransport(), stage.kv_transport.LocalTransport()
    sender.register([torch.arange(48.0).view(2, 6, 4), torch.arange(48.0, 96.0).view(2, 6, 4)])
    receiver.register([torch.zeros(2, 6, 4), torch.zeros(2, 6, 4)])
    ticket = sender.send("A", [5, 0, 3])
    transfer = receiver.receive(ticket, 1, [2, 4], lambda: None)
    expect(transfer.done() is True, "a copy within a process is done at once: `done` returns True")
    for number, (there, here) in enumerate(zip(sender.pools, receiver.pools, strict=True)):
        mine = [next((str(p) for p in range(6) if torch.equal(here[:, page], there[:, p])), "0") for page in range(6)]
        mine = [one if here[:, page].any() else "-" for page, one in enumerate(mine)]
        expect_rows(f"pool {number}: which page arrived where", mine, ["-", "-", "0", "-", "3", "-"], page=range(6))
    size = 2 * 2 * 2 * 4 * 4
    expect(transfer.bytes == size, f"2 pages of 2 layers of 4 floats, twice, are {size} bytes, not {transfer.bytes}")
    sender.abort("A")
    late = receiver.receive(ticket, 0, [1, 2, 4], lambda: None)
    expect_error(ConnectionError, late.done, "`done`, of an offer that was withdrawn,")


@milestone(
    "Worker._start_transfers, Worker._finish_transfers, Worker._drop",
    expected="Pages are reserved, then fetched into; when they are there the request runs. What fails is told.",
    hint="While the first that waits finds room: reserve, and receive behind the pages that the own tree has.",
    second_hint="_finish_transfers: resume, and report.arrived; after a ConnectionError _drop, and report.failed.",
)
def a_decode_worker_fetches(stage):
    there, here = make_worker(stage), make_worker(stage)
    prompt = stage.prompts(1, 40)[0]
    for pool in there.engine.pools:
        pool.copy_(torch.randn(pool.shape))
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
    same = [torch.equal(here.engine.pools[0][:, mine], there.engine.pools[0][:, page])
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
    picture = page_map(held.num_pages, {}, [*held.free, *(node.page for node in held.tree.unused)])
    expect(held.available == held.num_pages and not here.engine.requests, "after `_drop` A holds nothing", picture)


@milestone(
    "Worker.run, Worker.turn, Worker.read, Worker._take, Worker._step, Worker._hand_over, WorkerEngine.step",
    expected="A prefill worker parks a prompt after its first token and offers its pages; a decode worker goes on.",
    hint="read: drops first, then orders it does not hold yet; what can never fit goes to `refused`.",
    second_hint="_hand_over: park, read_ahead, send the pages of what is computed; report.parked has (key, ticket).",
)
def a_worker_works(stage):
    prompt = stage.prompts(1, 40)[0]
    [right] = stage.right_tokens([prompt], 8)
    prefill, decode = make_worker(stage), make_worker(stage)
    mail = stage.messages.Mail
    told = prefill.turn()
    expect(
        told.available == 24 and told.record is None, f"an idle worker tells how many pages it has: {told.available}"
    )
    for _ in range(2):  # mail may come twice
        prefill.read(mail(1, [order(stage, "A", prompt, hand_over=True)], []))
    prefill.read(mail(2, [order(stage, "X", prompt * 11, max_tokens=90)], []))
    report = prefill.turn(heartbeat=True)
    gained = [token for gain in report.gains for token in gain.token_ids]
    expect_rows("tokens of the prefill worker", gained, right[:1])
    expect([key for key, _ in report.failed] == ["X"], f"X never fits, and `failed` is {report.failed}")
    expect([key for key, _ in report.parked] == ["A"], f"A is done here, and report.parked has {report.parked}")
    beat = report.heartbeat
    expect(beat and (beat.mail, beat.held, beat.parked) == (2, {"A"}, {"A"}), f"the heartbeat says {beat}")
    expect(report.record is not None, "a turn with a step must report its record")
    ticket = report.parked[0][1]
    mailbox, reports = SimpleQueue(), []
    mailbox.put(mail(1, [order(stage, "A", prompt, right[:1], ticket=ticket)], []))

    def send(one):
        reports.append(one)
        if any(gain.finished for gain in one.gains):
            mailbox.put(stage.worker.CLOSED)

    decode.run(mailbox, send)
    gained = [token for one in reports for gain in one.gains for token in gain.token_ids]
    expect_rows("tokens of the decode worker, which runs until CLOSED", gained, right[1:])
    ran = [work.tokens for one in reports if one.record for work in one.record.works]
    expect(ran == [1] * 7, f"the prompt came with its pages: each step runs 1 token, and they ran {ran}")
    expect(any(one.arrived for one in reports), "a report must tell that the pages have arrived")
    prefill.read(mail(3, [], ["A"]))
    free = prefill.turn().available
    expect(free == 24 and not prefill.held, f"the router has dropped A: all 24 pages must be available, not {free}")
    decode.check()
