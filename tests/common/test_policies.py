"""Who is served first: order, fairness within the paper's bound, keys and promises."""

import itertools
import random
from collections import Counter
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.acceleration.accelerate import make_engine
from common.errors import InvalidInput
from common.policies import INPUT, OUTPUT, Fair, Key, Priority, Scheduling, arrange_before_steps, read_keys
from common.request import Request
from common.sampling import SamplingParams
from common.serving.promises import PromiseBroken, Promises, Rate
from common.stages import load_engine, load_stage_module
from tests.helpers.engine_options import drain, endless
from tests.helpers.faulty_fleet import WorkerWithoutModel
from tests.helpers.serving_openai import ENDLESS, openai_server

STAGES = ["04", "05", "06", "07", "08"]


class Loop(WorkerWithoutModel):
    """With the scheduler of stage 06. It counts what each tenant has been served, weighted as the paper does."""

    def __init__(self, pages=64, running=4):
        super().__init__(pages, page_size=4)
        self.scheduler = load_stage_module("06", "scheduler").Scheduler(running, 16, pages, 4)
        self.served: Counter[str] = Counter()

    def ask(self, prompt: int, output: int, **params) -> Request:
        """Add a request with a prompt of `prompt` tokens; every other prompt begins alike."""
        return self.add([len(self.requests) % 2] * prompt, endless(output, **params))

    def run(self, steps: int = 1) -> None:
        for _ in range(steps):
            tenants = {name: request.params.tenant for name, request in self.requests.items()}
            self.step()
            self.scheduler.check()
            for name, phase, tokens in self.trace[-1].works:
                self.served[tenants[name]] += (OUTPUT if phase == "decode" else INPUT) * tokens


def flooded() -> Loop:
    """Return a loop whose places one tenant has taken, with long answers and more of them to come."""
    loop = Loop(pages=200)
    arrange_before_steps(loop.scheduler, Fair(loop))
    for _ in range(50):
        loop.ask(8, 100, tenant="flood")
    loop.run(5)
    return loop


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([12, 64]), st.sampled_from([1.0, 3.0]))
def test_no_tenant_gets_ahead_by_more_than_the_papers_bound(seed, pages, weight):
    """Two that always have requests: over any stretch of steps, twice what a batch holds. With preemption and hits."""
    rng, loop = random.Random(seed), Loop(pages)
    arrange_before_steps(loop.scheduler, Fair(loop, {"b": weight}))
    most_prompt, most_batch = 20, 4 * (20 + 12)  # four run at most, with prompt and answer
    bound = 2 * max(INPUT * most_prompt, OUTPUT * most_batch)
    gaps = []
    for _ in range(300):
        for tenant, many in (("a", 12), ("b", 8)):
            here = sum(one.params.tenant == tenant for one in loop.requests.values())
            for _ in range(many - here):
                loop.ask(rng.randint(1, most_prompt), rng.randint(1, 12), tenant=tenant)
        loop.run()
        gaps.append(loop.served["a"] - loop.served["b"] / weight)
    assert max(gaps) - min(gaps) <= bound
    assert min(loop.served.values()) > 300, "both are served"


def test_one_who_floods_makes_room_for_others_and_two_who_flood_seldom_interrupt_each_other():
    loop = flooded()
    quiet = loop.ask(8, 8, tenant="quiet")
    loop.run(2)
    assert quiet.token_ids and loop.scheduler.preemptions == 1
    [gave_way] = [one for one in loop.requests.values() if one.preempted]
    while not quiet.finished:
        loop.run()
    loop.run()
    assert gave_way.request_id in loop.scheduler.running, "before the others of its tenant, who came later"
    for _ in range(50):
        loop.ask(8, 100, tenant="quiet")
    loop.run(100)
    until_even = loop.scheduler.preemptions
    loop.run(300)
    assert loop.scheduler.preemptions - until_even < 6, "twelve answers end, and whoever comes finds a place"


def test_of_more_tenants_than_places_none_waits_for_a_flood():
    loop = flooded()
    for number in range(5):
        loop.ask(8, 2, tenant=f"quiet {number}")
    loop.run(15)
    assert not any(one.params.tenant.startswith("quiet") for one in loop.requests.values())


def test_nobody_saves_up_and_an_engine_with_work_is_never_idle():
    loop = Loop()
    arrange_before_steps(loop.scheduler, policy := Fair(loop))
    loop.ask(8, 8, tenant="a")
    drain(loop)
    loop.ask(4, 2, tenant="a")
    loop.ask(4, 2, tenant="late")
    loop.run()
    assert policy.counters["late"] >= policy.least > 0
    while loop.requests:
        loop.run()
        assert not loop.requests or loop.trace[-1].tokens
    for number in range(100):  # A tenant that leaves with no more than the least counter is forgotten.
        loop.ask(4, 1, tenant=f"once {number}")
        drain(loop)
    assert len(policy.counters) < 10


def test_priority_decides_who_is_admitted_and_who_gives_way():
    loop = Loop(pages=8, running=2)
    arrange_before_steps(loop.scheduler, Priority())
    second = loop.ask(8, 16, priority=5)
    loop.run()
    third, first = loop.ask(8, 16, priority=7), loop.ask(9, 16, priority=0)
    loop.run(2)  # These steps admit it.
    assert next(iter(loop.scheduler.running)) == first.request_id, "the most urgent stands first"
    drain(loop)
    ended = sorted((first, second, third), key=lambda one: one.timings.finished)
    assert loop.scheduler.preemptions > 0 and ended == [first, second, third]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("policy", ["priority", "fair"])
def test_every_stage_follows_the_policy_and_answers_alike(loaded, expect, stage, policy):
    """Greedy tokens do not depend on the order; the one that comes first by policy begins first. Others refuse it."""
    with pytest.raises(InvalidInput, match="is for stages 04 to 08"):
        make_engine(load_engine("02"), loaded, scheduling=Scheduling(policy))
    options = {"07": {"num_draft_tokens": 2}, "08": {"replicas": 1, "num_draft_tokens": 2}}.get(stage, {})
    options |= {"token_budget": 64, "max_running": 1, "scheduling": Scheduling(policy)}
    engine = make_engine(load_engine(stage), loaded, **options)
    requests = [
        engine.add(prompt, SamplingParams(max_tokens=6, priority=priority, tenant=tenant))
        for prompt, priority, tenant in (("Tell me", 1, "a"), ("The capital of", 1, "a"), ("Once upon a time", 0, "b"))
    ]
    drain(engine)
    engine.close()
    for one in requests:
        assert one.token_ids == expect(one.prompt_token_ids, max_tokens=6).token_ids
    _, second, urgent = (one.timings.tokens[0] for one in requests)
    assert urgent < second


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
    """Prompts of 16 tokens take a step and a second each; three are promised."""
    now = [0.0]
    monkeypatch.setattr("common.serving.promises.time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(Loop):
        def step(self):
            now[0] += 1.0
            return super().step()

    slow, numbers = Slow(), itertools.count()
    slow.hooks.append(Promises(slow, 3.0, None, Scheduling()))

    def add(times: int) -> None:
        for _ in range(times):
            slow.add([next(numbers)] * 16, endless(1)).timings.arrival = now[0]

    add(2)
    slow.advance()
    add(2)
    with pytest.raises(PromiseBroken, match="1.0 s later than the 3 s") as refused:
        add(1)
    assert refused.value.headers == {"Retry-After": "1"}
    for _ in range(3):
        slow.advance()
    add(50)  # No request waits: all that comes before the next step is accepted.


def test_a_flood_breaks_no_promise_to_others():
    loop = Loop()
    for _ in range(100):
        loop.ask(10, 1, tenant="flood")
    for policy, weights, params, ahead in (
        ("fcfs", {}, {"tenant": "quiet"}, 1010),
        ("priority", {}, {"tenant": "quiet"}, 1010),
        ("priority", {}, {"priority": -1}, 10),
        ("fair", {}, {"tenant": "quiet"}, 20),
        ("fair", {"flood": 3.0}, {"tenant": "quiet"}, 40),
    ):
        promises = Promises(loop, 1.0, None, Scheduling(policy, weights))
        assert promises._ahead(10, SamplingParams(**params)) == ahead


def test_over_http_a_key_or_the_user_is_the_tenant_and_a_refusal_says_when_to_return(loaded, tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("anna 111\n")
    options = "--api-keys", str(tmp_path / "keys"), "--tpot-objective", "1"
    tenants, body, engine = [], {"prompt": "a", "max_tokens": 1, "user": "eve"}, load_engine("06")(loaded)
    accept = engine.accept
    monkeypatch.setattr(engine, "accept", lambda new: tenants.append(new.params.tenant) or accept(new))
    monkeypatch.setattr(Rate, "seconds", lambda *_: 9.0)
    with openai_server("06", loaded, engine=engine) as service:
        assert service.post(**body).status_code == 200
    with openai_server("06", loaded, *options, engine=engine) as service:
        client = httpx.Client(base_url=service.url, headers={"Authorization": "Bearer 111"})
        with client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as stream:
            lines = stream.iter_lines()  # It is kept, or the client would disconnect.
            next(lines)  # an idle engine takes whatever comes
            late = client.post("/v1/completions", json=body)
        assert service.post(**body).status_code == 401
    assert tenants == ["eve", "anna"]
    assert (late.status_code, late.headers["Retry-After"]) == (429, "5") and "1 are promised" in late.text
