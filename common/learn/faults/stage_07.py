"""Faults that a learner meets in stage 07: what may be kept of a draft, and what the draft model knows."""

from .fault import Fault

TESTS, SAMPLING = "tests/stages/test_07_speculative.py::{}", "tests/stages/test_07_speculative_sampling.py::{}"

FAULTS = [
    Fault(
        number=35,
        stage="07",
        symptom="Speculation pays less than it should: drafts are good for a few steps and then go astray.",
        difficulty=3,
        hints=(
            "Use the target as its own draft model. How many draft tokens should be accepted?",
            "After a draft that was accepted whole, which tokens has the draft model run, and which only drawn?",
        ),
        story="The last draft token is drawn by the draft model and never run by it. If all are accepted, its K and V "
        "are missing in the draft's cache. Count them as there, and every later draft reads a hole. No token of "
        "the answer is wrong, so only the acceptance rate tells. vLLM had it for more than one draft token.",
        source="vllm-project/vllm#9730",
        file="07_speculative/scheduler.py",
        old="sequence.draft_computed = min(sequence.draft_computed, sequence.computed)",
        new="sequence.draft_computed = sequence.computed",
        caught_by=TESTS.format("TestSpeculation"),
        reproduce="""
engine = Engine(loaded, draft="target", num_draft_tokens=4)
engine.generate([STORY], endless(max_tokens=60))
stats = engine.stats()
assert stats["accepted_tokens"] == stats["draft_tokens"], (stats["accepted_tokens"], stats["draft_tokens"])
""",
    ),
    Fault(
        number=36,
        stage="07",
        symptom="With speculation answers differ from those without it, and soon make no sense.",
        difficulty=1,
        hints=(
            "How much of a sequence counts as computed after a draft was rejected?",
            "K and V of rejected tokens lie in the pages. What keeps attention from reading them?",
        ),
        story="All tokens of the step are counted as computed, the rejected ones among them. The next step attends to "
        "the K and V of tokens that are not part of the text. A review of mlx-swift-lm found the same in a copy "
        "of the state that drafts are made from: the cache was trimmed, and the copy was not.",
        source="ml-explore/mlx-swift-lm#308",
        file="07_speculative/scheduler.py",
        old="sequence.computed = min(chunk.start + chunk.num_tokens, sequence.request.num_tokens - 1)",
        new="sequence.computed = chunk.start + chunk.num_tokens",
        caught_by=TESTS.format("TestSpeculation"),
        reproduce="compare(Engine(loaded, draft='lookup', num_draft_tokens=4), STORY, tokens=60)",
    ),
    Fault(
        number=37,
        stage="07",
        symptom="Requests that fill the whole context crash the server just before they end.",
        difficulty=2,
        hints=(
            "How many tokens may still come, and how many are drafted?",
            "A request with max_tokens=2 has its first token. How many draft tokens are of use?",
        ),
        story="Drafting looks ahead, and does not stop at the end of the request. Near the limit of the context it "
        "asks for positions that do not exist. exllamav2's draft model ran past its cache with an assertion in "
        "the middle of a stream. One token comes without a draft, so only max_tokens - 1 can be of use.",
        source="turboderp-org/exllamav2#274",
        file="07_speculative/scheduler.py",
        old="        most = min(most, sequence.request.max_tokens - len(sequence.request.token_ids) - 1)\n",
        new="",
        caught_by=TESTS.format("TestSpeculation"),
        reproduce="""
engine = Engine(loaded, draft="lookup", num_draft_tokens=8)
engine.drafter.draft = lambda chunks: [chunk.draft.token_ids.extend([5] * chunk.room) for chunk in chunks]
last = []
engine.model.register_forward_pre_hook(lambda _, inputs: last.append(int(inputs[1].max())))
[answer] = engine.generate([[7, 8, 9] * 1363], endless(max_tokens=7))  # 4,096 tokens: the whole context
assert max(last) < engine.config.context_length, f"position {max(last)} does not exist"
""",
    ),
    Fault(
        number=38,
        stage="07",
        symptom="With speculation and temperature 1, answers are tamer than without: likely words come too often.",
        difficulty=3,
        hints=(
            "Write down the rule of rejection sampling. With which probability is a draft token kept?",
            "If p and q are equal, all draft tokens are kept. Is that so here?",
        ),
        story="A draft token x is kept with probability min(1, p(x) / q(x)). Without the division by q it is kept "
        "with p(x), as if it had not been drawn by chance, while a rejected one is still replaced from p - q. "
        "Nothing crashes and the text is good; only its distribution is another. SGLang's drafts were greedy, "
        "where p(x) is right, until they were drawn and the rule had to change with them.",
        source="sgl-project/sglang#26312",
        file="07_speculative/verification.py",
        old="if uniform(row.seed, len(row.token_ids), COIN) * q_of_it >= p_of_it:",
        new="if uniform(row.seed, len(row.token_ids), COIN) >= p_of_it:",
        caught_by=SAMPLING.format("test_the_output_is_distributed_as_the_targets"),
        reproduce="""
engine = Engine(loaded, draft="target", num_draft_tokens=4)  # p and q are equal
engine.generate([STORY], endless(max_tokens=60, temperature=1.0))
stats = engine.stats()
assert stats["accepted_tokens"] == stats["draft_tokens"], (stats["accepted_tokens"], stats["draft_tokens"])
""",
    ),
    Fault(
        number=39,
        stage="07",
        symptom="The temperature has no effect with speculation: at 0.1 answers are as wild as at 1.",
        difficulty=2,
        hints=(
            "Two distributions are compared, the target's and the draft's. Which parameters has each seen?",
            "The target's is that which the sampler would draw from.",
        ),
        story="The draft is drawn with the request's temperature, and judged against the target's bare softmax. What "
        "is kept or put in place follows the wrong p. vLLM applied the parameters to the draft and not to the "
        "target; besides other texts it cost acceptance, since p and q were further apart than they had to be.",
        source="vllm-project/vllm#10198",
        file="07_speculative/verification.py",
        old="    p = probabilities(logits, rows)  # [R, V]\n",
        new="    p = logits.double().softmax(-1)  # [R, V]\n",
        caught_by=SAMPLING.format("test_the_output_is_distributed_as_the_targets"),
        reproduce="""
params = [endless(max_tokens=20), *[endless(max_tokens=20, temperature=0.01)] * 6]
greedy, *others = Engine(loaded, draft="draft", num_draft_tokens=4).generate([STORY] * 7, params)
assert all(other.token_ids == greedy.token_ids for other in others), others[0].text
""",
    ),
    Fault(
        number=40,
        stage="07",
        symptom="Answers go on for a few words after their end, or after a stop token. Without drafts they do not.",
        difficulty=1,
        hints=(
            "A step may bring several tokens. Which of them is the last?",
            "Follow the tokens of one step to `Request.append`.",
        ),
        story="A step used to bring one token, and the check for the end came after it. With speculation a step "
        "brings several, the end may be among them, and what follows it is no part of the answer. transformers "
        "appended the whole block and then looked at its last token; whether it showed depended on where the "
        "end fell.",
        source="huggingface/transformers#47912",
        file="common/engine.py",
        old="                if not request.finished:\n"
        "                    request.append(sampled.token_id, sampled.logprobs)\n"
        "                    self._generated_tokens += 1\n",
        new="                request.append(sampled.token_id, sampled.logprobs)\n"
        "                self._generated_tokens += 1\n",
        caught_by=TESTS.format("test_ends_in_the_middle_of_an_accepted_run"),
        reproduce="""
engine = Engine(loaded, draft="target", num_draft_tokens=4)
[full] = engine.generate([STORY], endless(max_tokens=20))
for stop in full.token_ids:
    [cut] = engine.generate([STORY], endless(max_tokens=20, stop_token_ids=[stop]))
    assert cut.token_ids == full.token_ids[: full.token_ids.index(stop) + 1], cut.token_ids
""",
    ),
]
