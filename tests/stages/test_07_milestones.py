"""Milestones of stage 07: tokens are drafted, run behind the newest one, and kept up to the first rejected one."""

from types import SimpleNamespace

import torch

from common.learn.milestones import milestone
from common.learn.milestones.paged import chunk, decoding, make_scheduler, owners, sequence
from common.learn.milestones.pictures import bars, timeline
from common.learn.milestones.stage_under_test import (
    drain,
    endless,
    expect,
    expect_error,
    expect_rows,
    expect_tensors,
    expect_tokens,
    letters,
    make_request,
)
from common.loader.draft import load_draft_model
from common.pass_times import Costs, PassTimes
from common.sampling import SamplingParams, draw, uniform
from common.stages import load_engine


@milestone("Chunk.num_tokens, Scheduler.schedule, Scheduler._make_room, Speculation.counts")
def test_room_for_draft_tokens(stage):
    """After each decoding request has its token, what is left of budget and pages goes to the draft tokens that the
    drafter has; half of it, where prompts have begun or may be admitted.

    Hint: First a wish: room = min(count, most, max_tokens minus the output minus 1); the drafter may lower it. Then
    room = _make_room(sequence, min(room, most)), which is no longer in the budget, nor in `most`.
    Second hint: drafter.prepare(chunks) comes between, if there is a drafter. _make_room: fewer while `extend` finds no
    page.
    """
    speculation = stage.speculation.Speculation(3)
    scheduler = stage.scheduler.Scheduler(4, 9, 9, 4, speculation)  # 9 tokens in a step, 9 pages of 4
    for name, tokens, most in (("A", 6, 40), ("B", 5, 3), ("C", 4, 40), ("D", 6, 40)):
        decoding(stage, scheduler, name, tokens, most)
    chunks = scheduler.schedule()
    mine = [one.room for one in chunks]
    picture = {"request": "ABCD", "may still gain": [39, 2, 39, 39]}
    expect_rows("room, of a budget of 9 tokens for 4 requests", mine, [3, 1, 1, 0], **picture)
    pages = [len(one.sequence.page_table.pages) for one in chunks]
    expect_rows("pages", pages, [3, 2, 2, 2], request="ABCD", tokens=[7 + 3, 6 + 1, 5 + 1, 7])
    chunks[0].draft.token_ids = [1, 2]
    expect(chunks[0].num_tokens == 3, f"one token and a draft of 2: num_tokens is {chunks[0].num_tokens}")
    drafter = SimpleNamespace(prepare=lambda chunks: setattr(chunks[0], "room", 1))  # it has one token for A
    cases = (
        ("has begun", None, [6, 6]),
        ("waits", None, [6, 6]),
        ("waits, and there is one draft token", drafter, [2, 10]),
    )
    for prompt, drafter, wanted in cases:
        both = stage.scheduler.Scheduler(4, 12, 20, 4, stage.speculation.Speculation(8))
        both._reuse = lambda sequence: None  # The next milestone writes it; nothing is shared here.
        decoding(stage, both, "A", 5)
        both.add(make_request("P", 40, 3))
        if prompt == "has begun":
            both._admit()
        mine = [one.num_tokens + one.room for one in both.schedule(drafter)]
        expect_rows(f"tokens of a budget of 12; the prompt {prompt}", mine, wanted, request="AP")
    short = stage.scheduler.Scheduler(4, 64, 2, 4, speculation)
    decoding(stage, short, "A", 5)
    [one] = short.schedule()
    expect(one.room == 2, f"2 pages hold 8 tokens, and 6 are there: room is 2, not {one.room}", owners(short))


@milestone("Scheduler.count_computed, Scheduler.cache_full_pages, Scheduler.check, Speculation.learn")
def test_what_counts_as_computed(stage):
    """Accepted draft tokens count as computed; what the draft model computed in a page given up does not. `learn` hears
    of every chunk, also of one without a draft.

    Hint: computed = min(chunk.start + chunk.num_tokens, num_tokens - 1): the newest token is yet to be run.
    Second hint: draft_computed never exceeds computed, nor the beginning of a page given up for a cached copy. Of k
    draft tokens min(k, tokens gained) were judged, and no more than were gained are accepted.
    """
    scheduler, Draft = make_scheduler(stage, pages=20), stage.verification.Draft
    heard, learn = [], scheduler.speculation.learn
    scheduler.speculation.learn = lambda sequence, *each: (heard.append(each), learn(sequence, *each))
    # In the last case the first of two accepted tokens ends the request.
    for drafted, accepted, gained in ((3, 0, 1), (3, 1, 2), (3, 3, 4), (2, 2, 1)):
        a = decoding(stage, scheduler, "A", [len(heard), 11, 12, 13, 14, 15], draft_computed=6)
        scheduler.allocator.extend(a.page_table, 12)
        run = 6 + drafted  # The draft model has run all but the last of its own tokens.
        one = chunk(stage, a, 6, 7, draft=Draft([1, 2, 3][:drafted], accepted=accepted, computed=run))
        for _ in range(gained):
            a.request.append(50)
        scheduler.count_computed([one])
        mine, wanted = [a.computed, a.draft_computed], [6 + gained, min(run, 6 + gained)]
        said = f"tokens computed: {accepted} of {drafted} draft tokens are accepted, the output is {gained}"
        expect_rows(said, mine, wanted, by=["target", "draft model"])
        scheduler.check()
        scheduler.remove(a.request)
    judged = "`learn`: drafted, judged, accepted and in the output"
    expect_rows(judged, heard, [(3, 1, 0), (3, 2, 1), (3, 3, 3), (2, 1, 1)], accepted=[0, 1, 3, 2])
    speculation = scheduler.speculation
    ever = speculation.drafts, speculation.draft_tokens, speculation.accepted
    expect_rows("counts after that", ever, [4, 11, 5], of=["drafts", "draft tokens", "accepted"])
    a, b = (decoding(stage, scheduler, name, list(range(30, 42)), draft_computed=12) for name in "AB")
    scheduler.cache_full_pages()
    known = [a.draft_computed, b.draft_computed]
    expect_rows("draft_computed: A's pages are cached, B gave up its own for them", known, [12, 0], request="AB")
    a.draft_computed = 13
    expect_error(AssertionError, scheduler.check, "`check`, with draft_computed above computed,")


@milestone("Batch.__init__")
def test_draft_tokens_in_the_batch(stage):
    """Draft tokens run behind the newest token like any others, and what follows each of them is scored.

    Hint: A chunk has chunk.num_tokens rows: chunk.token_ids + chunk.draft.token_ids.
    Second hint: A chunk that completes, with k draft tokens, has k + 1 rows to score: its last k + 1.
    """
    a, c = sequence(stage, "A", 6, [3, 0]), sequence(stage, "C", 9, [2, 5, 1])
    chunks = [chunk(stage, a, 5, 6, draft=stage.verification.Draft([70, 71])), chunk(stage, c, 0, 4)]
    batch = stage.batch.Batch(chunks, torch.device("cpu"))
    token_ids, positions = [15, 70, 71, 10, 11, 12, 13], [5, 6, 7, 0, 1, 2, 3]
    expect_tensors(batch, "AAACCCC", token_ids=token_ids, positions=positions)
    expect_tensors(batch.paged, "AAACCCC", slot_mapping=[1, 2, 3, 8, 9, 10, 11])
    expect_tensors(batch, "AAA", logits_rows=[0, 1, 2])
    expect_tensors(batch.paged, "AC", lengths=[8, 4])


@milestone("PromptLookup.prepare, PromptLookup.draft, NgramIndex.find")
def test_drafts_from_the_text_itself(stage):
    """What followed the last tokens where they occurred before, the longest run of them first, is the draft.

    Hint: `ends` maps each run of n tokens to where it ended last; index only what is new, and not the text's own end.
    Second hint: prepare: find(what is new); the draft is index.tokens[start : start + room], and room is its length.
    draft: there may be less room by then.
    """
    text = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3]
    index = stage.drafter.NgramIndex(2, 4)
    found = [index.find([token]) for token in text]
    wanted = [0, 0, 0, 0, 0, 3, 0, 0, 2, 3]
    expect_rows("the place behind the earlier occurrence", found, wanted, text=text)
    lookup, one = stage.drafter.PromptLookup(), chunk(stage, sequence(stage, "A", text), 9, 10, room=9)
    lookup.prepare([one])
    said = f"7 tokens are behind the earlier occurrence: `prepare` leaves room for these, not {one.room}"
    expect(one.room == 7, said)
    one.room = 2
    lookup.draft([one])
    expect_rows("draft of two tokens after ... 1 2 3", one.draft.token_ids, [9, 2])


def drafting(stage, tokens: list[int], room: int, pages: list[int]):
    """Return a chunk that decodes behind these tokens, the last of them generated."""
    running = sequence(stage, "A", tokens[:-1], pages, page_size=16)
    running.request.append(tokens[-1])
    return chunk(stage, running, len(tokens) - 1, len(tokens), room=room)


@milestone("DraftModel.prepare, DraftModel.draft, DraftModel._share_pages, DraftModel._draft_one")
def test_drafts_of_a_small_model(stage):
    """The draft model reads what it lacks of each text, within its budget, and continues it greedily. A cached page
    notes whether the draft model has read it, for requests that begin alike.

    Hint: prepare: read. draft: draw one token for each that has room, and run those that still have some.
    Second hint: prepare: from draft_computed on, at most read_budget tokens in all; drafts need the whole text.
    _share_pages: while the next page of the path is noted, skip it; then note those before it that are not.
    """
    small = load_draft_model("auto", stage.loaded)
    model = stage.drafter.DraftModel(small, 32, 16, "torch", read_budget=64)

    def draft(*chunks):
        model.prepare(list(chunks))
        model.draft(list(chunks))

    texts = [prompt[:count] for prompt, count in zip(stage.prompts(3, 30), (20, 9, 14), strict=True)]
    right = [one.token_ids for one in load_engine("02")(small).generate(texts, endless(4))]
    rooms = 4, 1, 0
    chunks = [drafting(stage, texts[i], rooms[i], [2 * i, 2 * i + 1]) for i in range(3)]
    draft(*chunks)
    expect(model.reads_prompts, "`reads_prompts` must say that a text of 20 tokens was read")
    for one, text, wanted, room in zip(chunks, texts, right, rooms, strict=True):
        what = f"draft behind {stage.text(text)[-20:]!r}, room {room}"
        expect_rows(what, one.draft.token_ids, wanted[:room])
        known, wanted_known = one.draft.computed, len(text) + room - 1 if room else 0
        expect(known == wanted_known, f"{what}: draft.computed is {known}, not {wanted_known}")
    cached = [stage.prefix_tree.Node(None, (), page) for page in range(20, 26)]
    long, alike = (drafting(stage, stage.prompts(1, 100)[0], 4, list(range(20, 27))) for _ in "AB")
    long.sequence.page_table.path = alike.sequence.page_table.path = cached
    draft(long)
    known = long.sequence.draft_computed = long.draft.computed  # as count_computed notes it
    said = f"of 100 tokens a budget of 64 reads 64, not {known}, and before all is read there is no room: {long.room}"
    expect(known == 64 and long.room == 0, said)
    long.room = 4
    draft(long)
    expect(len(long.draft.token_ids) == 4, "in the next step the rest is read, and then 4 tokens are drafted")
    noted = [node.draft_computed for node in cached]
    expect_rows("cached pages noted: 4 of 6 had been read before this step", noted, [True] * 4 + [False] * 2)
    draft(alike)
    what = "a request that begins alike skips these, and is drafted for at once"
    expect_rows(what, alike.draft.token_ids, long.draft.token_ids)
    model.context_length = len(texts[0]) + 3
    over = drafting(stage, texts[0], 4, [10, 11])
    draft(over)
    expect(not model.reads_prompts, "where no text is read, `reads_prompts` must be False")
    expect(not over.draft.token_ids, "a draft of 4 behind 20 tokens does not fit a context of 23: there must be none")
    chance = drafting(stage, texts[0], 3, [10, 11])
    chance.sequence.request.params = SamplingParams(temperature=1.0)
    draft(chance)
    sums = [round(float(q.sum()), 4) for q in chance.draft.probabilities]
    expect_rows("sums of the distributions it was drawn from, without a seed", sums, [1.0] * 3)


def one_hot(tokens: list[int], size: int = 8) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), size).float()


@milestone("compare")
def test_kept_as_far_as_the_target_agrees(stage):
    """Draft tokens are kept up to the first that the target does not say, and one token of its own follows.

    Hint: Sample the target's token for every row; a request with k draft tokens has k + 1 rows.
    Second hint: Count while agreed < k and mine[agreed].token_id == draft.token_ids[agreed]; then mine[:agreed + 1].
    """
    cases = {  # draft, what the target says, what is kept
        "A": ([3, 5, 1], [3, 5, 2, 7], [3, 5, 2]),
        "B": ([], [6], [6]),
        "C": ([4], [4, 1], [4, 1]),
        "D": ([2, 2], [1, 2, 2], [1]),
    }
    each, drafts, said = [], [], []
    for name, (draft, says, _) in cases.items():
        request = make_request(name, 3)
        each += [stage.verification.Row.after(request, draft[:count]) for count in range(len(draft) + 1)]
        drafts.append(stage.verification.Draft(draft))
        said += says
    mine = stage.verification.compare(one_hot(said), each, drafts)
    expect(len(mine) == 4, f"four requests gain four lists, not {len(mine)}")
    for (name, (draft, says, wanted)), gained in zip(cases.items(), mine, strict=True):
        picture = {"draft": draft, "target says": says}
        expect_rows(f"tokens that {name} gains", [one.token_id for one in gained], wanted, **picture)


@milestone("verify, reject")
def test_rejected_and_still_the_target(stage):
    """A draft token is accepted with probability min(1, p/q), else one of p - q is drawn: the output is as p.

    Hint: Accept if uniform(seed, position, COIN) * q(x) < p(x). Else draw from the positive part of p - q.
    Second hint: verify: drafts with probabilities go to reject, the others to compare; the order stays. Coins are of
    stream COIN, a token in place of a rejected one of RESIDUAL, one behind an accepted draft of the sampler's, 0.
    """
    # p is more than q at two tokens, so that it shows which random number picks one of them.
    p, q = torch.tensor([0.4, 0.3, 0.2, 0.1]).double(), torch.tensor([0.1, 0.1, 0.5, 0.3]).double()
    then, other = torch.tensor([[0.1, 0.1, 0.7, 0.1], [0.05, 0.5, 0.4, 0.05]]).double()
    Draft, requests, drafts, params = stage.verification.Draft, [], [], SamplingParams(temperature=1.0)
    for seed in range(2000):
        request = make_request("A", 1)
        request.params, request.seed = params, seed
        tokens = [int(draw(one[None], [uniform(seed, i)])[0]) for i, one in enumerate((q, other))]
        drafts.append(Draft(tokens, [q, other]))
        requests.append(request)
    logits = torch.stack([p, then, then]).log().float().repeat(2000, 1)
    gained = stage.verification.verify(logits, requests, drafts)
    first = torch.tensor([tokens[0].token_id for tokens in gained]).bincount(minlength=4) / 2000
    picture = bars({f"token {token}, p {p[token]:.1f}": share for token, share in enumerate(first.tolist())}, 1)
    near = (first - p).abs().max() < 0.035
    expect(near, "the first tokens of 2,000 requests must be distributed as p; their shares are", picture)
    accepted = sum(len(tokens) > 1 for tokens in gained) / 2000
    expect(abs(accepted - 0.5) < 0.035, f"accepted are {accepted:.3f}, and sum over x of min(p, q) is 0.5")
    for count in (1, 2):
        behind = [tokens[count].token_id == 2 for tokens in gained if len(tokens) > count]
        share = sum(behind) / max(1, len(behind))
        expect(abs(share - 0.7) < 0.05, f"behind {count} accepted, token 2 has p 0.7; its share is {share:.3f}")
    noted = all(draft.accepted == len(tokens) - 1 for draft, tokens in zip(drafts, gained, strict=True))
    expect(noted, "`verify` must set `accepted` in every draft")
    logits, requests = torch.cat([one_hot([2, 1], 4), logits[:3]]), [make_request("B", 2), requests[0]]
    both = stage.verification.verify(logits, requests, [Draft([2]), drafts[0]])
    mine, alone = ([one.token_id for one in tokens] for tokens in (both[1], gained[0]))
    expect(mine == alone, f"beside a greedy request, one by chance gains {mine}, not {alone} as without it")


@milestone("Engine.step, Engine.schedule, Engine.run, Engine.commit, Engine.stats")
def test_more_tokens_in_fewer_steps(stage):
    """With draft tokens the tokens are those of stage 02, in fewer steps; also where pages run short. The counters
    `drafted` and `accepted` of the step's record say how many draft tokens ran, and were accepted.

    Hint: schedule(drafter), draft, then sort chunks by num_tokens > 1. run: verify(logits, requests, drafts).
    Second hint: commit: append the tokens, count_computed, then retire. Only steps in which neither model reads a
    prompt are timed.
    """
    prompts = [*stage.prompts(3, 24), stage.loaded.tokenizer("one two three four five one two three four")["input_ids"]]
    small = 8 * 16 * (stage.token_bytes + 1024)  # 8 pages, with the bundled draft model's K and V
    for draft, memory in (("auto", "64M"), ("lookup", "64M"), ("auto", small)):
        engine = stage.make_engine(num_draft_tokens=4, draft=draft, attention="torch", kv_memory=memory)
        timed: list[list[int]] = []
        engine.scheduler.speculation.record_step_time = lambda seconds, counts, timed=timed: timed.append(counts)
        requests = [engine.add(prompt, endless(14)) for prompt in prompts]
        names = letters(engine.requests)
        drain(engine)
        expect_tokens(stage, engine, requests)
        engine.check()
        stats, steps = engine.stats(), list(engine.trace)
        drafted, accepted = (sum(step.counters.get(name, 0) for step in steps) for name in ("drafted", "accepted"))
        said = [stats.get("draft_tokens"), stats.get("accepted_tokens")]
        counters = f"the trace's counters `drafted` and `accepted` add up to {drafted} and {accepted}"
        expect(said == [drafted, accepted], f"{counters}, and stats() says {said[0]} and {said[1]}")
        long = [[work.tokens > 1 for work in step.works] for step in steps]
        expect(all(step == sorted(step) for step in long), "chunks of one token come first in every step")
        decodes = sum(all(work.phase == "decode" for work in step.works) for step in steps)
        said = f"{decodes} steps ran no prompt, and `record_step_time` was called {len(timed)} times"
        fewer = "; it must not be where the draft model read a prompt" if draft == "auto" else ""
        expect(0 < len(timed) < decodes if fewer else len(timed) == decodes, said + fewer)
        expect(0 < accepted <= drafted, f"draft={draft}: {accepted} of {drafted} draft tokens were accepted")
        if (draft, memory) == ("auto", "64M"):
            expect(len(steps) < 14, f"14 tokens took {len(steps)} steps", timeline(steps[:12], names))
    expect(stats["preemptions"] > 0, "nothing was preempted in a pool of 8 pages")


@milestone("Acceptance.learn, Acceptance.rate, best_counts, AdaptiveSpeculation.counts, AdaptiveSpeculation.learn")
def test_as_many_as_pay(stage):
    """Each request gets the number of draft tokens with the most tokens per second, given its acceptance rate.

    Hint: (1 + a + ... + a^k) / (T(1 + k) + k t) is the rate of tokens with k draft tokens: take the best k, or 0.
    Second hint: learn multiplies what was seen before by `forget`. rate mixes in the average.
    """
    module = stage.adaptive_speculation
    acceptance = module.Acceptance()
    acceptance.learn(3, 2)
    acceptance.learn(4, 4)
    seen = [round(one, 3) for one in (acceptance.accepted, acceptance.judged, acceptance.rate(0.5))]
    wanted = [0.9 * 2 + 4, 0.9 * 3 + 4, round((5.8 + 4 * 0.5) / (6.7 + 4), 3)]
    expect_rows("2 of 3 accepted, then 4 of 4", seen, wanted, of=["accepted", "judged", "rate"])

    def costs(target: dict[int, float], draft: float):
        return Costs(PassTimes(target), PassTimes({1: draft, 512: draft}))

    flat = costs({1: 1.6, 512: 1.6}, 0.15)
    best = [module.best_counts([rate], flat)[0] for rate in (0.8, 0.5, 0.1)]
    expect_rows("best_counts of one request, T = 1.6, t = 0.15", best, [6, 2, 0], rate=(0.8, 0.5, 0.1))
    adaptive = module.AdaptiveSpeculation(costs({1: 1.0, 101: 6.0}, 0.01))
    good, bad = (sequence(stage, name, 3) for name in "AB")
    expect(adaptive.counts([]) == [], "without sequences, `counts` returns an empty list")
    for _ in range(30):
        adaptive.learn(good, 4, 4, 4)
        adaptive.learn(bad, 4, 1, 0)
    mine = adaptive.counts([good, bad])
    expect(mine[0] >= 4 and mine[1] <= 1, f"drafts always accepted, and never: the counts are {mine}")
    expect(adaptive.accepted == 120, f"`learn` must go on counting, as `Speculation.learn` does: {adaptive.accepted}")
