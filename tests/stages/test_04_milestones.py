"""Milestones of stage 04: many requests in each step, each in its own slot, each joining and leaving when it can."""

import torch

from common.learn.milestones import milestone
from common.learn.milestones.pictures import rows, timeline
from common.learn.milestones.stage_under_test import (
    commit,
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
    letters,
    make_request,
)


def make_scheduler(stage):
    """Return a scheduler of three slots, with a budget of 8 tokens."""
    return stage.scheduler.Scheduler(3, 8)


def chunk(stage, slot: int, start: int, count: int, more: int = 0):
    """Return a chunk of `count` tokens from `start` on, of a sequence with `more` tokens behind them."""
    request = make_request("ABCDEFGH"[slot], start + count + more)
    sequence = stage.scheduler.Sequence(request, slot, start + count)
    tokens = request.token_ids_between(start, start + count)
    return stage.scheduler.Chunk(sequence, start, tokens, completes=not more)


@milestone("Sequence.remaining, Scheduler._chunk, Scheduler.count_computed")
def test_pieces_of_a_sequence(stage):
    """A prompt of 10 tokens, a budget of 4 per step, runs as 4, 4 and 2; then each new token runs alone.

    Hint: `remaining` is request.num_tokens - computed. A chunk ends after `most` tokens, or where the request does.
    Second hint: _chunk changes nothing; count_computed sets `computed` of each chunk to its start and its length.
    """
    scheduler, request = make_scheduler(stage), make_request("A", 10)
    sequence = stage.scheduler.Sequence(request, slot=0)
    mine = []
    for _ in range(5):
        remains = sequence.remaining
        piece = scheduler._chunk(sequence, 4)
        mine.append((remains, piece.start, len(piece.token_ids), piece.completes))
        count, computed = len(piece.token_ids), sequence.computed
        chosen = f"the chunk has {count} tokens from number {piece.start} on"
        expect(computed == piece.start, f"{chosen}, and none of them has run: `computed` must not be {computed}")
        commit(scheduler, [piece])
        computed = sequence.computed
        expect(computed == piece.start + count, f"{chosen}, which were run and committed: `computed` is {computed}")
        expect_rows(chosen, piece.token_ids, request.token_ids_between(piece.start, computed))
    wanted = [(10, 0, 4, False), (6, 4, 4, False), (2, 8, 2, True), (1, 10, 1, True), (1, 11, 1, True)]
    for place, name in enumerate(("remaining before", "start", "tokens", "completes")):
        expect_rows(name, [one[place] for one in mine], [one[place] for one in wanted], chunk=range(1, 6))


@milestone("Scheduler.add, Scheduler.remove, Scheduler.check, Scheduler._admit")
def test_every_slot_has_one_owner(stage):
    """The oldest waiting request gets a free slot; a request that ends gives it back for the next one.

    Hint: free_slots is a heap: heappop takes the lowest, heappush returns one. `running` is in order of arrival.
    Second hint: `remove` gets requests that run and requests that wait; only the former have a slot.
    """
    scheduler = make_scheduler(stage)
    requests = {letter: make_request(letter, 5) for letter in "ABCDE"}
    for request in requests.values():
        scheduler.add(request)
    admitted = [scheduler._admit() for _ in range(4)]
    expect_rows("slots of A, B, C and D", [one and one.slot for one in admitted], [0, 1, 2, None], request="ABCD")
    scheduler.remove(requests["D"])
    scheduler.remove(requests["B"])
    waiting = [request.request_id for request in scheduler.waiting]
    expect(waiting == ["E"], f"D has left the queue, and the queue is {waiting}")
    expect(scheduler.free_slots == [1], f"B has left slot 1, and free are {scheduler.free_slots}")
    late = scheduler._admit()
    expect(late and late.slot == 1 and late.request.request_id == "E", "E must get the slot that B has left")
    scheduler.check()
    scheduler.running["E"].slot = 0
    expect_error(AssertionError, scheduler.check, "`check`, with a slot owned twice,")
    scheduler.running["E"].slot, scheduler.running["A"].computed = 1, 99
    expect_error(AssertionError, scheduler.check, "`check`, with more computed than there is,")


@milestone("Scheduler.schedule")
def test_a_step_under_a_budget(stage):
    """A token for each that decodes; the rest of the budget is for prompts that have begun, then for waiting ones.

    There are three slots, and a budget of 8. Chunks of one token come first, each kind in the order of slots.

    Hint: Decodes first, whatever else waits. What is left of the budget goes to prompts in order of arrival.
    Second hint: Subtract each chunk's tokens from the budget until none is left. Sort: one token first, then slot.
    """
    scheduler = make_scheduler(stage)
    wanted = [{"A": 3, "B": 5}, {"A": 1, "B": 7}, {"A": 1, "B": 1, "C": 4}, {"A": 1, "B": 1, "C": 1}]
    expect_steps(scheduler, [{"A": 3, "B": 12, "C": 4, "D": 2}], wanted)
    scheduler.remove(scheduler.running["A"].request)  # D gets its slot, the first
    expect_steps(scheduler, [], [{"B": 1, "C": 1, "D": 2}, {"D": 1, "B": 1, "C": 1}])
    scheduler = make_scheduler(stage)
    expect(scheduler.schedule() == [], "with nothing to do, `schedule` returns an empty list")


@milestone("share_calls")
def test_which_requests_share_a_call(stage):
    """Neighbouring slots with equally many tokens share a call if one more brings no more padding than a call costs.

    Hint: Compare each chunk with the last of the group before it: slot + 1, as many tokens, little padding.
    Second hint: A shorter one pads itself to the longest of the group; a longer one pads every member of the group.
    """
    cases = {
        "equal lengths": ({0: 100, 1: 120, 2: 90}, "012"),
        "one is long": ({0: 100, 1: 900, 2: 90}, "0 1 2"),
        "slot 2 is missing": ({0: 100, 1: 100, 3: 100}, "01 3"),
        "1 token and 5": ({0: 100, 1: 100}, "0 1"),
        "48 of padding": ({0: 100, 1: 148}, "01"),
        "49 of padding": ({0: 100, 1: 149}, "0 1"),
        "20 for each of three": ({0: 100, 1: 100, 2: 100, 3: 120}, "012 3"),
    }
    for name, (past, wanted) in cases.items():
        tokens = [5 if slot and name == "1 token and 5" else 1 for slot in past]
        chunks = [chunk(stage, slot, past[slot], count) for slot, count in zip(past, tokens, strict=True)]
        groups = stage.slot_attention.share_calls(chunks, 48)
        mine = " ".join("".join(str(one.sequence.slot) for one in group) for group in groups)
        picture = rows({"slot": past, "past": past.values(), "tokens": tokens})
        expect(mine == wanted, f"{name}: the calls take slots {mine!r}, not {wanted!r}", picture)


@milestone("Batch.__init__, plan_calls")
def test_one_batch_for_all_requests(stage):
    """All tokens of the step end to end, with position and slot, and for each call its rows, slots and mask.

    Hint: Token i of a chunk is at position start + i, and may look at places up to its own: a mask hides the rest.
    Second hint: mask: [B, 1, tokens * groups, longest]: -inf where place > past + i, for each head of a group.
    """
    chunks = [chunk(stage, 0, 5, 1), chunk(stage, 1, 3, 1), chunk(stage, 3, 0, 4, more=2)]
    batch = stage.batch.Batch(chunks, 2, torch.device("cpu"), torch.float32)
    positions, slots = [5, 3, 0, 1, 2, 3], [0, 1, 3, 3, 3, 3]
    expect_tensors(batch, "ABDDDD", token_ids=[15, 13, 10, 11, 12, 13], positions=positions, slots=slots)
    expect_tensors(batch, "AB", logits_rows=[0, 1])  # D does not complete its prompt.
    calls = stage.slot_attention.plan_calls(chunks, 2, torch.device("cpu"), torch.float32)
    spans = [(call.rows.start, call.rows.stop, call.slots.start, call.slots.stop, call.longest) for call in calls]
    expect_rows("calls: rows from, to, slots from, to, longest", spans, [(0, 2, 0, 2, 6), (2, 6, 3, 4, 4)])
    shape = list(calls[1].mask.shape)
    expect(shape == [1, 1, 8, 4], f"4 tokens and groups of 2 heads: the mask is {shape}, not [1, 1, 8, 4]")
    visible = [row == 0 for call in calls for row in call.mask[:, 0, ::2].flatten(0, 1)]
    mine = ["".join(str(int(place)) for place in row) for row in visible]
    wanted = ["111111", "111100", "1000", "1100", "1110", "1111"]
    expect_rows("places that a token may look at are 1", mine, wanted, token=["A", "B", "D0", "D1", "D2", "D3"])


@milestone("KVCache.bind, BoundCache.__call__, attend_to_slots")
def test_attention_over_slots(stage):
    """K and V of the step go to their slots; then each token attends to its own request, up to itself.

    Hint: keys[slots, :, positions] = k writes all of them at once. Write before you attend.
    Second hint: attend_to_slots: the heads that share a K/V head stand beside the tokens, [B, H_kv, n * groups, D].
    """
    config, cache = stage.loaded.config, stage.kv_cache.KVCache(stage.loaded, 4)

    def bind(spans):
        chunks = [chunk(stage, "ABCD".index(name), start, stop - start) for name, start, stop in spans]
        groups = config.num_heads // config.num_kv_heads
        return cache.bind(stage.batch.Batch(chunks, groups, torch.device("cpu"), torch.float32))

    steps = (("A", 0, 6), ("B", 0, 3), ("D", 0, 4)), (("A", 6, 7), ("B", 3, 4), ("D", 4, 6))
    expect_attention_in_steps(stage, cache, steps, bind, lambda name, place: ("ABCD".index(name), slice(None), place))


@milestone("Engine.accept, Engine.step, Engine.schedule, Engine.run, Engine.commit, Engine.release")
def test_many_requests_in_one_step(stage):
    """Requests join while others decode and leave when they end; each has the tokens it has alone.

    Hint: step is schedule, run, commit. run scores batch.logits_rows; commit gives completed chunks their tokens.
    Second hint: accept and release go to the scheduler. commit: append_tokens, count_computed, then retire_finished.
    """
    prompts = [prompt[: 10 + 7 * i] for i, prompt in enumerate(stage.prompts(6, 50))]
    engine, requests = stage.make_engine(max_running=4, token_budget=24), []
    for prompt, tokens in zip(prompts, (10, 3, 7, 5, 8, 4), strict=True):
        requests.append(engine.add(prompt, endless(tokens)))
        engine.step()
    names = letters(engine.requests)
    drain(engine)
    expect_tokens(stage, engine, requests)
    together = max(len(step.works) for step in engine.trace)
    picture = timeline(engine.trace, names)
    expect(together == 4, f"at most {together} requests shared a step, and there are 4 slots", picture)
    expect("waiting" in engine.trace[-1].counters, '`Engine.schedule` must set counters["waiting"] of its record')
    expect(engine.step() == [], "with nothing to do, `step` returns an empty list")


@milestone("Engine.stats")
def test_what_slots_waste(stage):
    """`stats` says how many are `running` and `waiting`, and of K and V how many tokens are used (`kv_tokens_used`) and
    reserved (`kv_tokens_reserved`, `kv_bytes_reserved`), and how many fit into all slots (`kv_tokens_capacity`).

    Hint: A running request reserves a slot of self.config.context_length tokens, and uses `computed` of them.
    Second hint: kv_bytes_reserved is kv_tokens_reserved times self.config.kv_bytes_per_token(self.dtype).
    """
    engine = stage.make_engine(max_running=2)
    for prompt in stage.prompts(3, 10):
        engine.add(prompt, endless(20))
    for _ in range(3):
        engine.step()
    wanted = {"running": 2, "waiting": 1, "kv_tokens_used": 24, "kv_tokens_reserved": 1024}
    wanted |= {"kv_tokens_capacity": 1024, "kv_bytes_reserved": 1024 * stage.token_bytes}
    expect_stats("after three steps", engine, wanted)
