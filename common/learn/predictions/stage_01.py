"""Stage 01: every token runs the whole sequence again."""

from dataclasses import replace

from common.bench.cost_model import step_flops
from common.bench.harness import Figures
from common.bench.run import run_benchmark
from common.bench.settings import Settings
from common.bench.workloads import random_prompt
from common.sampling import SamplingParams
from common.stages import load_engine

from . import Found, Question, benchmark_of, over_first

STAGE = "01_naive"
WHOLE = benchmark_of(
    __file__, [STAGE], seconds=16, quick={"lengths": [64, 256, 512, 1024], "rounds": 3, "answers": [64, 256]}
)


def measure(settings: Settings, sizes: dict) -> Figures:
    engine = load_engine(STAGE)(settings.load())
    prompt = random_prompt(sizes["prompt"], engine.config.vocab_size)
    engine.generate([prompt], SamplingParams(max_tokens=sizes["answers"][0], ignore_eos=True))
    return WHOLE.sides[STAGE](settings, sizes) | {"tokens_run": sum(step.tokens for step in engine.trace)}


BENCHMARK = replace(WHOLE, sides={STAGE: measure})


def tokens_run(found: Found) -> float:
    prompt, answer = found.sizes["prompt"], found.sizes["answers"][0]
    return answer * prompt + answer * (answer - 1) / 2


def answer_flops(found: Found, tokens: int) -> int:
    return sum(step_flops(found.config, found.sizes["prompt"] + i) for i in range(tokens))


QUESTIONS = [
    Question(
        "tokens",
        "Tokens run for one answer",
        "The prompt has {prompt} tokens, the answer {answers[0]}. How many tokens does the model run in all steps?",
        "The first step runs the prompt. Each later step runs the whole sequence, which is one token longer.",
        "tokens",
        tokens_run,
        lambda found: found.sides[STAGE]["tokens_run"],
    ),
    Question(
        "step",
        "One more token in a longer sequence",
        "How many times as long as in a sequence of {lengths[0]} tokens does one more token take?",
        "A step over S tokens takes 11.6 million x S + 4,096 x S^2 + 2.1 million operations.",
        "times",
        lambda found: over_first([step_flops(found.config, length) for length in found.sizes["lengths"]]),
        lambda found: over_first(found.sides[STAGE]["ms_per_token"]),
        lambda sizes: sizes["lengths"][1:],
        "tokens in the sequence",
        why_less="Every step has a fixed cost, Python's and PyTorch's, and in short sequences it is much of the step.",
        why_more="Operations ran at a lower rate in the long sequence than in the short one.",
    ),
    Question(
        "answer",
        "A longer answer",
        "How many times as long as an answer of {answers[0]} tokens does one of {answers[1]} take?",
        "The prompt has {prompt} tokens. An answer adds up its steps, and each of them grows with the sequence.",
        "times",
        lambda found: over_first([answer_flops(found, tokens) for tokens in found.sizes["answers"][:2]]),
        lambda found: over_first(found.sides[STAGE]["seconds"][:2]),
        why_less="The fixed cost of each step grows with the answer's length, not with its square.",
    ),
]

if __name__ == "__main__":
    run_benchmark(BENCHMARK)
