"""Faults that a learner meets in stage 04: which requests share a step, and what they see of each other."""

from .fault import Fault

TESTS = "tests/stages/test_04_continuous_batching.py::{}"
CONTRACT = "tests/test_contract.py::test_greedy_tokens_are_those_of_transformers --engine 04_continuous_batching"

FAULTS = [
    Fault(
        number=14,
        stage="04",
        symptom="All streams freeze for seconds whenever a user pastes a long document.",
        difficulty=1,
        hints=(
            "In which steps does a request in decode get its token?",
            "Read `schedule` as if one request were in the middle of a long prompt.",
        ),
        story="Prefill comes first, because a new request should see its first token soon. While prompts keep coming, "
        "there is always one to run, and requests in decode wait. A production SGLang server ran one decode "
        "step in 24 seconds that way. Each request in decode costs one token of the budget, so it can have it "
        "in every step.",
        source="sgl-project/sglang#32549",
        file="04_continuous_batching/scheduler.py",
        old="chunks = [self._chunk(sequence, 1) for sequence in self.running.values() if sequence.remaining == 1]\n",
        new="decoding = [sequence for sequence in self.running.values() if sequence.remaining == 1]\n"
        "        chunks = [self._chunk(one, 1) for one in decoding if len(decoding) == len(self.running)]\n",
        caught_by=TESTS.format("TestScheduler"),
        reproduce="""
engine = Engine(loaded, max_running=4, token_budget=32)
writer = engine.add([5] * 10, endless(max_tokens=20))
engine.step()
reader = engine.add([7] * 200, endless(max_tokens=2))
for _ in range(5):
    engine.step()
assert len(writer.token_ids) == 6, f"{len(writer.token_ids)} tokens in 6 steps"
""",
    ),
    Fault(
        number=15,
        stage="04",
        symptom="Answers to long prompts begin with words that have nothing to do with them. Short ones are right.",
        difficulty=1,
        hints=(
            "How long is a prompt that is cut into pieces, and how many tokens does each piece bring?",
            "Which rows of a batch are scored, and which should be?",
        ),
        story="A piece of a prompt that is not its end scores a next token as well. It is a guess about a token that "
        "is known, and has to be dropped. tinygrad's chunked prefill fed wrong tokens as soon as a prompt was "
        "longer than one chunk. Tests with short prompts do not see it.",
        source="tinygrad/tinygrad#15182",
        file="04_continuous_batching/scheduler.py",
        old="return Chunk(sequence, start, token_ids, completes=sequence.remaining == 0)",
        new="return Chunk(sequence, start, token_ids, completes=True)",
        caught_by=TESTS.format("test_a_long_prompt_goes_in_pieces_between_the_tokens_of_others"),
        reproduce="compare(Engine(loaded, max_running=8, token_budget=16), list(range(100, 150)))",
    ),
    Fault(
        number=16,
        stage="04",
        symptom="A request alone is answered well. Beside a longer one its answer is another, and worse.",
        difficulty=2,
        hints=(
            "What do two requests in neighbouring slots share?",
            "One mask hides what is beyond each request's own length. Print it for two requests of different lengths.",
        ),
        story="Requests that share a call are padded to the longest, and a mask hides the padding of each. Compute "
        "the mask from one length for all, and the shorter ones look at places that hold zeros, or the K and V "
        "of the slot's last owner. A review found this in ComfyUI: the padded width stood where each row's own "
        "length belongs.",
        source="Comfy-Org/ComfyUI#15698",
        file="04_continuous_batching/slot_attention.py",
        old="        past = [chunk.start for chunk in together]\n",
        new="        past = [max(chunk.start for chunk in together)] * len(together)\n",
        caught_by=CONTRACT,
        reproduce="compare(Engine(loaded), list(range(200, 210)), list(range(100, 140)), tokens=30)",
    ),
    Fault(
        number=17,
        stage="04",
        symptom="After clients have cancelled, their prompts are run all the same, and fewer requests run at once.",
        difficulty=1,
        hints=(
            "Where can a request be when it is cancelled?",
            "A request that waits has no slot, but it has a place in the queue.",
        ),
        story="A cancelled request is taken out of the running ones; one that still waits is overlooked. When its "
        "turn comes it is admitted, runs its whole prompt for a client that left long ago, and keeps its slot. "
        "OpenInfer spent tens of seconds on such prompts after a wave of disconnects. In vLLM a race of this "
        "kind ended the engine.",
        source="pegainfer-project/pegainfer#642",
        file="04_continuous_batching/scheduler.py",
        old="        else:\n            self.waiting.remove(request)\n",
        new="",
        caught_by=TESTS.format("TestScheduler"),
        reproduce="""
engine = Engine(loaded, max_running=2)
first, second, third = (engine.add([5 + i] * 9, endless(max_tokens=4)) for i in range(3))
engine.abort(second.request_id)
finish(engine)
worked = {work.request_id for step in engine.trace for work in step.works}
assert second.request_id not in worked, "it was cancelled before it began"
""",
    ),
    Fault(
        number=18,
        stage="04",
        symptom="An evaluation gives other scores at temperature 0.7 than at 0, although the model is the same.",
        difficulty=2,
        hints=(
            "Log-probabilities are the model's opinion. Which parameters of a request may change them?",
            "Compare the logprob of the same token at two temperatures.",
        ),
        story="OpenAI's log-probabilities are those of the model, before temperature and filters. A sampler that "
        "divides by the temperature and then reads off the log-probabilities gives others for every "
        "temperature. vLLM's first engine did so, and people wrote functions to recover the model's own.",
        source="vllm-project/vllm#9453",
        file="common/sampling.py",
        old="self.logprobs = Logprobs(logits, self.token_ids,",
        new="heat = _column([row.params.temperature or 1.0 for row in rows], logits)\n"
        "        self.logprobs = Logprobs(logits / heat, self.token_ids,",
        caught_by="tests/common/test_sampling.py::test_logprobs_are_of_the_raw_distribution_for_the_rows_that_ask",
        reproduce="""
cold, warm = Engine(loaded).generate([STORY] * 2, [
    endless(max_tokens=1, logprobs=1), endless(max_tokens=1, logprobs=1, temperature=0.5, top_k=1)
])
assert cold.token_ids == warm.token_ids
assert cold.logprobs[0] == warm.logprobs[0], (cold.logprobs[0], warm.logprobs[0])
""",
    ),
]
