"""Faults that a learner meets in stage 06: pages that requests share, and when they may be forgotten."""

from .fault import Fault

TESTS = "tests/stages/test_06_prefix_cache.py::{}"

FAULTS = [
    Fault(
        number=25,
        stage="06",
        symptom="Sending the same prompt twice crashes the server, if its length is 512 or 1,024 tokens.",
        difficulty=1,
        hints=(
            "What remains to be computed if the whole prompt is cached?",
            "The next token needs the last one's hidden state, and the cache has only keys and values.",
        ),
        story="A prompt that fills its last page exactly, and was seen before, is found whole. No token remains to be "
        "run, so nothing is scored. nano-vllm crashed in the attention kernel with zero queries; several people "
        "found it independently. At least the last token has to be computed, cached or not.",
        source="GeeeekExplorer/nano-vllm#144",
        file="06_prefix_cache/scheduler.py",
        old="while sequence.computed == len(table.path) * size and sequence.remaining > size:",
        new="while sequence.computed == len(table.path) * size and sequence.remaining >= size:",
        caught_by=TESTS.format("test_at_least_one_token_is_computed"),
        reproduce="""
engine, prompt = Engine(loaded), list(range(300, 332))
first, second = (engine.generate([prompt], endless(max_tokens=6))[0] for _ in range(2))
assert first.token_ids == second.token_ids, (first.token_ids, second.token_ids)
""",
    ),
    Fault(
        number=26,
        stage="06",
        symptom="The share of used memory creeps up to 100 % and stays there, with no request running.",
        difficulty=2,
        hints=(
            "Which code takes references to cached pages, and which gives them back?",
            "A request may be looked up and then not admitted.",
        ),
        story="To see whether a request fits, its prefix is looked up, and each page found gets one more user. If "
        "there is no room after all, the request waits; the references stay. Pages with users are never "
        "evicted. SGLang leaked in the same place: on the way out after a failed admission.",
        source="sgl-project/sglang#16067",
        file="06_prefix_cache/scheduler.py",
        old="            self.allocator.release(table)\n            self.refused =",
        new="            self.refused =",
        caught_by=TESTS.format("TestPrefixCache"),
        reproduce="""
engine = Engine(loaded, kv_memory=6 * 16 * 8192)  # 6 pages
engine.generate([[5] * 40], endless(max_tokens=1))
engine.add([6] * 40, endless(max_tokens=4))
engine.add([5] * 60, endless(max_tokens=4))  # two of its pages are cached, and there is no room for the others yet
finish(engine)
assert engine.stats()["kv_tokens_used"] == 0, engine.stats()["kv_tokens_used"]
""",
    ),
    Fault(
        number=27,
        stage="06",
        symptom="Now and then an answer turns into another user's text in the middle of a sentence.",
        difficulty=3,
        hints=(
            "A page may be evicted if it has no user. How does a page with a user differ from others, in the tree?",
            "Follow a page from `release` to `follow`. In which collections is it?",
        ),
        story="A cached page that a request takes over must leave the list of pages that may be evicted. If it stays, "
        "the next shortage gives it to another request, which overwrites it while the first one reads. vLLM's "
        "rewrite of its prefix cache touches all computed blocks before it takes new ones, for this reason; "
        "reviews discuss the order at length.",
        source="vllm-project/vllm#11310",
        file="06_prefix_cache/prefix_tree.py",
        old="            if node.references == 0:\n                del self.unused[node]\n",
        new="",
        caught_by=TESTS.format("TestPrefixCache"),
        reproduce="""
prompt = list(range(300, 349))
[wanted] = Engine(loaded).generate([prompt], endless(max_tokens=30))
engine = Engine(loaded, kv_memory=8 * 16 * 8192)  # 8 pages
engine.generate([prompt], endless(max_tokens=1))
answer = engine.add(prompt, endless(max_tokens=30))
engine.add([5] * 60, endless(max_tokens=20))
finish(engine)
assert answer.token_ids == wanted.token_ids, f"{answer.text!r} in place of {wanted.text!r}"
""",
    ),
    Fault(
        number=28,
        stage="06",
        symptom="After a day of good service the engine fails with a KeyError when an old prompt comes again.",
        difficulty=2,
        hints=(
            "What does eviction leave behind?",
            "A page is found by its parent and its tokens. Both have to forget it.",
        ),
        story="The page is given to another request, and the entry under which it was found remains. When its old "
        "text comes again, it is found, and holds something else. nano-vllm reset the block and kept the hash "
        "in its table. There a comparison of tokens may still save the answer; here it ends in an error.",
        source="GeeeekExplorer/nano-vllm#163",
        file="06_prefix_cache/prefix_tree.py",
        old="        del node.parent.children[node.tokens]\n",
        new="",
        caught_by=TESTS.format("TestPrefixCache"),
        reproduce="""
engine = Engine(loaded, kv_memory=4 * 16 * 8192)  # 4 pages
old, other = list(range(300, 333)), list(range(500, 560))
first = engine.generate([old], endless(max_tokens=3))[0]
engine.generate([other], endless(max_tokens=3))
again = engine.generate([old], endless(max_tokens=3))[0]
assert first.token_ids == again.token_ids
""",
    ),
    Fault(
        number=29,
        stage="06",
        symptom="The prefix cache is full, and the hit rate is near zero.",
        difficulty=2,
        hints=(
            "Which page of a long prompt should be forgotten first?",
            "A page can only be reached through its parent. In which order do they become unused?",
        ),
        story="All pages of a request become unused at the same moment. Note the first page first, and it is evicted "
        "first; the pages behind it stay in memory, and no lookup can reach them. A simulator of llm-d evicted "
        "the first block in 144 of 200 runs. Give back the deepest page first, and the shared beginning lives "
        "longest.",
        source="llm-d/llm-d-inference-sim#704",
        file="06_prefix_cache/prefix_tree.py",
        old="for node in reversed(path):",
        new="for node in path:",
        caught_by=TESTS.format("test_a_text_is_forgotten_from_its_end"),
        reproduce="""
engine = Engine(loaded, kv_memory=6 * 16 * 8192)  # 6 pages
prompt = list(range(300, 365))
engine.generate([prompt], endless(max_tokens=1))  # four pages stay in the tree
engine.generate([[5] * 33], endless(max_tokens=1))  # which takes three pages, one of them from the tree
[again] = engine.generate([prompt], endless(max_tokens=1))
assert again.cached_tokens == 48, f"{again.cached_tokens} of 65 tokens were found"
""",
    ),
    Fault(
        number=30,
        stage="06",
        symptom="The dashboard shows a hit rate of 60 % for prompts that have nothing in common.",
        difficulty=2,
        hints=(
            "When is a lookup a hit of the cache, and when does a request find itself?",
            "Make memory short. What does a preempted request find when it comes back?",
        ),
        story="A preempted request finds the pages that it had computed itself. That saves work, and is no hit: "
        "`cached_tokens` is what a customer is not charged for, and the hit rate decides how large the cache "
        "should be. This repository counted it until its metrics were compared with the definitions of vLLM's.",
        source="this repository, commit 3759511",
        file="06_prefix_cache/scheduler.py",
        old="        if not request.admitted:  # what it finds after a preemption it may have computed itself\n"
        "            request.admitted = sequence.first = True\n"
        "            self.tokens_asked += request.num_tokens\n"
        "            self._count_hit(request, sequence.computed)\n",
        new="        request.admitted = sequence.first = True\n"
        "        self.tokens_asked += request.num_tokens\n"
        "        self._count_hit(request, sequence.computed)\n",
        caught_by=TESTS.format("test_what_a_request_finds_after_a_preemption_is_no_hit"),
        reproduce="""
engine = Engine(loaded, kv_memory=5 * 16 * 8192)  # 5 pages
requests = [engine.add([5] * 30, endless(max_tokens=30)), engine.add([6] * 30, endless(max_tokens=18))]
finish(engine)
assert [request.cached_tokens for request in requests] == [0, 0], "two prompts with no common beginning"
""",
    ),
    Fault(
        number=31,
        stage="06",
        symptom="A user cancels while a long document is read. All who ask about the same document then get nonsense.",
        difficulty=3,
        hints=(
            "When may a page be found by others: when its tokens are known, or when something else has happened?",
            "Let the prompt take several steps, and look at the tree after the first.",
        ),
        story="A page is put into the tree when its tokens are known, but its K and V have not been computed: the "
        "prompt runs in pieces. If its request ends early, the next one with that beginning skips what was "
        "never computed. A pull request of vLLM says why blocks are marked only later: others in the batch "
        "would skip them, and get wrong output.",
        source="vllm-project/vllm#7822",
        file="06_prefix_cache/scheduler.py",
        old="while (end := (len(table.path) + 1) * size) <= sequence.computed:",
        new="while (end := (len(table.path) + 1) * size) <= sequence.request.num_tokens:",
        caught_by=TESTS.format("TestPrefixCache"),
        reproduce="""
engine, prompt = Engine(loaded, max_running=2, token_budget=64), [11 + i % 97 for i in range(300)]
first = engine.add(prompt, endless(max_tokens=3))
engine.step()  # a fifth of the prompt
engine.abort(first.request_id)
compare(engine, prompt, tokens=3)
""",
    ),
]
