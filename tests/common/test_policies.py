"""Who is served first: order, fairness within the paper's bound, keys and promises."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.acceleration.accelerate import make_engine
from common.errors import InvalidInput
from common.policies import INPUT, OUTPUT, Fair, Key, Priority, Scheduling, read_keys
from common.request import Request
from common.sampling import SamplingParams
from common.serving.promises import PromiseBroken, Promises
from common.stages import load_engine, load_stage_module
from common.trace import Trace
from tests.helpers.engine_options import drain, endless

STAGES = ["04", "05", "06", "07", "08"]


def request(name: str, prompt: int, output: int, **params) -> Request:
    given = endless(output, **params)
    return Request(name, [int(name) % 2] * prompt, given, None, frozenset(), output)


class Loop:
    """Stage 06's scheduler without a model: a step runs what it chooses, and each complete sequence gains a token."""

    def __init__(self, pages=64, running=4):
        self.scheduler = load_stage_module("06", "scheduler").Scheduler(running, 16, pages, 4)
        self.trace, self.requests, self.count = Trace(), {}, 0
        self.served: dict[str, float] = {}  # by tenant, weighted as the paper does

    def add(self, prompt: int, output: int, **params) -> None:
        one = request(f"{self.count:05}", prompt, output, **params)
        self.count += 1
        self.scheduler.add(one)
        self.requests[one.request_id] = one

    def step(self) -> None:
        with self.trace.step() as record:
            chunks = self.scheduler.schedule()
            for chunk in chunks:
                one = chunk.sequence.request
                record.work(one.request_id, chunk.phase, len(chunk.token_ids))
                price = OUTPUT if chunk.phase == "decode" else INPUT
                tenant = one.params.tenant
                self.served[tenant] = self.served.get(tenant, 0.0) + price * len(chunk.token_ids)
                if chunk.completes:
                    one.append(7)
        self.scheduler.count_computed(chunks)
        self.scheduler.check()
        for one in [chunk.sequence.request for chunk in chunks]:
            if one.finished:
                self.scheduler.remove(self.requests.pop(one.request_id))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()


def flooded() -> Loop:
    """Return a loop whose places one tenant has taken, with long answers and more of them to come."""
    loop = Loop(pages=200)
    loop.scheduler.policy = Fair(loop)
    for _ in range(50):
        loop.add(8, 100, tenant="flood")
    loop.run(5)
    return loop


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([12, 64]), st.sampled_from([1.0, 3.0]))
def test_no_tenant_gets_ahead_by_more_than_the_papers_bound(seed, pages, weight):
    """Two that always have requests: over any stretch of steps, twice what a batch holds. With preemption and hits."""
    rng, loop = random.Random(seed), Loop(pages)
    loop.scheduler.policy = Fair(loop, {"b": weight})
    most_prompt, most_batch = 20, 4 * (20 + 12)  # four run at most, with prompt and answer
    bound = 2 * max(INPUT * most_prompt, OUTPUT * most_batch)
    gaps = []
    for _ in range(300):
        for tenant, many in (("a", 12), ("b", 8)):
            here = sum(one.params.tenant == tenant for one in loop.requests.values())
            for _ in range(many - here):
                loop.add(rng.randint(1, most_prompt), rng.randint(1, 12), tenant=tenant)
        loop.step()
        gaps.append(loop.served.get("a", 0.0) - loop.served.get("b", 0.0) / weight)
    assert max(gaps) - min(gaps) <= bound
    assert min(loop.served.values()) > 300, "both are served"


def test_one_who_floods_makes_room_for_others_and_two_who_flood_seldom_interrupt_each_other():
    loop = flooded()
    loop.add(8, 8, tenant="quiet")
    quiet = loop.requests[f"{50:05}"]
    loop.run(2)
    assert quiet.token_ids and loop.scheduler.preemptions == 1
    [gave_way] = [one for one in loop.requests.values() if one.preempted]
    while not quiet.finished:
        loop.step()
    loop.step()
    assert gave_way.request_id in loop.scheduler.running, "before the others of its tenant, who came later"
    for _ in range(50):
        loop.add(8, 100, tenant="quiet")
    loop.run(100)
    until_even = loop.scheduler.preemptions
    loop.run(300)
    assert loop.scheduler.preemptions - until_even < 6, "twelve answers end, and whoever comes finds a place"


def test_of_more_tenants_than_places_none_waits_for_a_flood():
    loop = flooded()
    for number in range(5):
        loop.add(8, 2, tenant=f"quiet {number}")
    loop.run(15)
    assert not any(one.params.tenant.startswith("quiet") for one in loop.requests.values())


def test_nobody_saves_up_and_an_engine_with_work_is_never_idle():
    loop = Loop()
    loop.scheduler.policy = policy = Fair(loop)
    loop.add(8, 8, tenant="a")
    while loop.requests:
        loop.step()
    loop.add(4, 2, tenant="a")
    loop.add(4, 2, tenant="late")
    loop.step()
    assert policy.counters["late"] >= policy.least > 0
    while loop.requests:
        loop.step()
        assert not loop.requests or loop.trace[-1].tokens
    for number in range(100):  # whoever leaves with no more than the least is forgotten
        loop.add(4, 1, tenant=f"once {number}")
        while loop.requests:
            loop.step()
    assert len(policy.counters) < 10


def test_a_weight_of_two_gets_twice_as_much():
    loop = Loop()
    loop.scheduler.policy = Fair(loop, {"two": 2.0})
    for _ in range(200):
        for tenant in ("one", "two"):
            loop.add(4, 8, tenant=tenant)
    loop.run(300)
    assert loop.served["two"] == pytest.approx(2 * loop.served["one"], rel=0.1)


def test_priority_decides_who_is_admitted_and_who_gives_way():
    loop = Loop(pages=8, running=2)
    loop.scheduler.policy = Priority()
    loop.add(8, 16, priority=5)
    loop.step()
    loop.add(8, 16, priority=7)
    loop.add(9, 16, priority=0)
    loop.step()  # which admits it
    loop.step()
    assert next(iter(loop.scheduler.running)) == f"{2:05}", "the most urgent stands first"
    ended = []
    while loop.requests:
        before = set(loop.requests)
        loop.step()
        ended += sorted(before - set(loop.requests))
    assert loop.scheduler.preemptions > 0 and ended == [f"{number:05}" for number in (2, 0, 1)]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("policy", ["priority", "fair"])
def test_every_stage_asks_the_policy_and_answers_alike(loaded, stage, policy):
    """Greedy tokens do not depend on the order; the one that comes first by policy begins first."""
    options = {"07": {"num_draft_tokens": 2}, "08": {"replicas": 1, "num_draft_tokens": 2}}.get(stage, {})
    prompts, made = ["Tell me", "The capital of", "Once upon a time"], []
    for scheduling in (Scheduling(), Scheduling(policy)):
        engine = make_engine(
            load_engine(stage), loaded, token_budget=64, max_running=1, scheduling=scheduling, **options
        )
        params = [
            SamplingParams(max_tokens=6, priority=priority, tenant=tenant)
            for priority, tenant in ((1, "a"), (1, "a"), (0, "b"))
        ]
        requests = [engine.add(*pair) for pair in zip(prompts, params, strict=True)]
        drain(engine)
        made.append(requests)
        engine.close()
    assert [one.token_ids for one in made[0]] == [one.token_ids for one in made[1]]
    order = [sorted(requests, key=lambda one: one.timings.tokens[0]) for requests in made]
    assert order[0] == made[0] and order[1].index(made[1][2]) < order[1].index(made[1][1])


def test_what_no_stage_can_do_is_refused(loaded):
    with pytest.raises(InvalidInput, match="is for stages 04 to 08"):
        make_engine(load_engine("02"), loaded, scheduling=Scheduling("fair"))


def test_keys_are_read_and_mistakes_named(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# tenants\nanna 111\nbert 222 2.5  # twice and a half\n\n")
    assert read_keys(file) == [Key("anna", "111"), Key("bert", "222", 2.5)]
    for text, wrong in {
        "anna": "line 1 of .* must be",
        "anna 1\nbert 2 x": "line 2 of .* must be",
        "anna 1 0": "must be",
        "anna 1 nan": "must be",
        "anna 1 2 3": "must be",
        f"{'a' * 129} 1": "at most 128 characters",
        "anna 1\nbert 1": "has the key of 'anna'",
        "# nobody": "has no keys",
    }.items():
        file.write_text(text)
        with pytest.raises(InvalidInput, match=wrong):
            read_keys(file)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_keys(tmp_path / "nothing")


def test_a_promise_that_would_be_broken_is_refused_and_an_idle_engine_promises_again(monkeypatch):
    """Prompts of ten tokens take a second each; three are promised."""
    now = [0.0]
    monkeypatch.setattr("common.serving.promises.time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow:
        def __init__(self):
            self.requests = {}

        def add(self, prompt, params=None):
            one = request(f"{len(self.requests) + int(now[0] * 100):05}", len(prompt), 1)
            one.timings.arrival = now[0]
            self.requests[one.request_id] = one

        def step(self):
            now[0] += 1.0
            if not self.requests:
                return []
            one = self.requests.pop(next(iter(self.requests)))
            one.append(7)
            return [one]

    promises, order = Promises(Slow(), 3.0, None, Scheduling()), ([1] * 10, SamplingParams())

    promises.add(*order)
    promises.add(*order)
    promises.step()
    for _ in range(2):
        promises.add(*order)
    with pytest.raises(PromiseBroken, match="1.0 s later than the 3 s") as refused:
        promises.add(*order)
    assert refused.value.headers == {"Retry-After": "1"}
    for _ in range(3):
        promises.step()
    for _ in range(100):  # nobody waits: what comes before the next step is taken as a whole
        promises.add(*order)


def test_a_flood_breaks_no_promise_to_others():
    engine = SimpleNamespace(requests={})
    for number in range(100):
        one = request(f"{number:05}", 10, 1, tenant="flood")
        engine.requests[one.request_id] = one
    for policy, ahead in {"fcfs": 1010, "priority": 1010, "fair": 20}.items():
        promises = Promises(engine, 1.0, None, Scheduling(policy))
        assert promises._ahead(10, SamplingParams(tenant="quiet")) == ahead
    heavy = Promises(engine, 1.0, None, Scheduling("fair", {"flood": 3.0}))
    assert heavy._ahead(10, SamplingParams(tenant="quiet")) == 40
    urgent = Promises(engine, 1.0, None, Scheduling("priority"))
    assert urgent._ahead(10, SamplingParams(priority=-1)) == 10
