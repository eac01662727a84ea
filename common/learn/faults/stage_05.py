"""Faults that a learner meets in stage 05: pages, and what happens when they run short."""

from .fault import Fault

TESTS = "tests/stages/test_05_paged_attention.py::{}"

FAULTS = [
    Fault(
        number=19,
        stage="05",
        symptom="Under load a few requests take minutes, while others that came later are answered in seconds.",
        difficulty=1,
        hints=(
            "What happens to a request whose pages were taken away?",
            "It had come before all that wait. Where in the queue does it belong?",
        ),
        story="A preempted request goes to the end of the queue. By the time it is admitted again, memory is short "
        "once more, and it is the youngest again. In vLLM's queue with priorities, a preempted request could be "
        "passed by others of the same priority; what it had computed was thrown away each time.",
        source="vllm-project/vllm#41951",
        file="05_paged_attention/scheduler.py",
        old="self.waiting.appendleft(sequence.request)",
        new="self.waiting.append(sequence.request)",
        caught_by=TESTS.format("test_the_youngest_gives_way_and_comes_back_first"),
        reproduce="""
engine = Engine(loaded, kv_memory=4 * 16 * 8192)  # 4 pages
old, young, late = (engine.add([5 + i] * 14, endless(max_tokens=40)) for i in range(3))
finish(engine)
assert young.timings.finished < late.timings.finished, "a request that came later was served first"
""",
    ),
    Fault(
        number=20,
        stage="05",
        symptom="Beyond some load throughput falls by half, and the metrics show thousands of preemptions.",
        difficulty=2,
        hints=(
            "When may a request be admitted? Count pages, and think of the next few steps.",
            "Each running request will soon need another page. Is one kept for it?",
        ),
        story="A request is admitted as soon as its own tokens fit. The pool is then full, the next page that any "
        "request needs is not there, and the youngest, which was just admitted, is preempted. vLLM kept a "
        "watermark against this from its first weeks (#11), lost it in a rewrite, and measured it again: 1,065 "
        "preemptions without, 187 with 5 % of the pool in reserve.",
        source="vllm-project/vllm#44594",
        file="05_paged_attention/scheduler.py",
        old="if self.allocator.pages_for(request.num_tokens) + len(self.running) > len(self.allocator.free):",
        new="if self.allocator.pages_for(request.num_tokens) > len(self.allocator.free):",
        caught_by=TESTS.format("test_the_youngest_gives_way_and_comes_back_first"),
        reproduce="""
engine = Engine(loaded, kv_memory=12 * 16 * 8192)  # 12 pages
engine.generate([[5 + i] * 15 for i in range(12)], endless(max_tokens=4))
assert engine.stats()["preemptions"] == 0, f"{engine.stats()['preemptions']:.0f} preemptions for 12 short requests"
""",
    ),
    Fault(
        number=21,
        stage="05",
        symptom="One request with a very long prompt stops the whole server. It uses no CPU, and logs nothing.",
        difficulty=1,
        hints=(
            "Which requests can never run, however long they wait?",
            "The queue is first come, first served. What if its head never fits?",
        ),
        story="The request is shorter than the model's context and larger than all pages together. It waits at the "
        "head of the queue for memory that cannot exist, and all behind it wait too. vLLM has had "
        "several reports of this, the first in 2023. Such a request has to be refused when it arrives, with the "
        "numbers.",
        source="vllm-project/vllm#39734",
        file="05_paged_attention/scheduler.py",
        old="        self.allocator.check_fits(len(request.prompt_token_ids) + request.max_tokens)\n",
        new="",
        caught_by=TESTS.format("test_what_never_fits_is_refused_with_the_numbers"),
        reproduce="""
engine = Engine(loaded, kv_memory=4 * 16 * 8192)  # 4 pages, 64 tokens
try:
    engine.add([7] * 70, endless(max_tokens=10))
except ValueError:
    pass
else:
    raise AssertionError("80 tokens were accepted for a pool of 64")
""",
    ),
    Fault(
        number=22,
        stage="05",
        symptom="Less fits into memory than the arithmetic says. With short requests it is hardly more than half.",
        difficulty=1,
        hints=(
            "How many pages does a request of exactly one page take?",
            "Compare `kv_tokens_reserved` for prompts of 15, 16 and 17 tokens.",
        ),
        story="Dividing and adding one is the ceiling of a division, except where it comes out even. A prompt of 16 "
        "tokens then takes two pages of 16. inference-sim had an error of one page in its check of the "
        "capacity, and refused and preempted requests for which there was room.",
        source="inference-sim/inference-sim#502",
        file="05_paged_attention/page_table.py",
        old="return -(-tokens // self.page_size)",
        new="return tokens // self.page_size + 1",
        caught_by=TESTS.format("TestPagedScheduler"),
        reproduce="""
engine = Engine(loaded)
request = engine.add([5] * 32, endless(max_tokens=4))
engine.step()
assert engine.stats()["kv_tokens_reserved"] == 32, engine.stats()["kv_tokens_reserved"]
""",
    ),
    Fault(
        number=23,
        stage="05",
        symptom="The server crashes with an IndexError, but only when it has been busy for a while.",
        difficulty=2,
        hints=(
            "What does `_extend` return, and which caller looks at it?",
            "A sequence may lose its pages in the very step for which it is being scheduled.",
        ),
        story="The loop over the running requests preempts some of them on its way, and goes on with the list it "
        "began with. A sequence without pages is scheduled. In Habana's fork of vLLM, preempted sequences "
        "stayed in a copy of the running queue, and the next iteration stopped at once and starved all the "
        "others.",
        source="HabanaAI/vllm-fork#2247",
        file="05_paged_attention/scheduler.py",
        old="            if sequence.remaining == 1 and self._extend(sequence):\n"
        "                chunks.append(self._chunk(sequence, 1))\n",
        new="            if sequence.remaining == 1:\n"
        "                self._extend(sequence)\n"
        "                chunks.append(self._chunk(sequence, 1))\n",
        caught_by=TESTS.format("TestPagedScheduler"),
        reproduce="""
engine = Engine(loaded, kv_memory=4 * 16 * 8192)  # 4 pages
requests = [engine.add([5 + i] * 14, endless(max_tokens=40)) for i in range(3)]
finish(engine)
assert all(len(request.token_ids) == 40 for request in requests)
""",
    ),
    Fault(
        number=24,
        stage="05",
        symptom="Answers are fluent and slightly wrong: they differ from those of transformers after a while.",
        difficulty=3,
        hints=(
            "Positions: at which number does a chunk begin, and at which the next one?",
            "Print `positions` of the first two steps. Is a number missing?",
        ),
        story="Every position after the first piece is one too high. Rotary embeddings only see differences, so most "
        "of attention still works, and the text stays fluent: the worst kind of fault. In "
        "flash-linear-attention's cache, the first layer counted the new token at once, and all layers above it "
        "read a length that was one too large.",
        source="fla-org/flash-linear-attention#766",
        file="05_paged_attention/batch.py",
        old="positions += range(chunk.start, chunk.start + count)",
        new="positions += range(chunk.start + (chunk.start > 0), chunk.start + count + (chunk.start > 0))",
        caught_by="tests/test_contract.py::test_greedy_tokens_are_those_of_transformers --engine 05_paged_attention",
        reproduce="compare(Engine(loaded, token_budget=64), *[list(range(i, i + 40)) for i in (100, 300, 500)])",
    ),
]
