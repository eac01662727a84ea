"""What a bundled checkpoint can do: the share of held-out questions that it answers word for word, greedily.

    python -m common.checkpoints.evaluate target        # a few minutes; writes target/evaluation.json
    python -m common.checkpoints.evaluate draft         # and how many of its tokens the target accepts

The questions come from the corpus program with a seed that training never used. Facts, terms and sums are still the
ones it was trained on, since there are no others: for these it is a test of memory. Names, numbers, codes and texts in
passages are new each time: there it is a test of reading. The last four rows ask what stands in `unseen`, of which the
training text has nothing. A story has no one right text, so it counts as right if it ends by itself, has the days it
was asked for in their order, and does not repeat a sentence.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

from common.loader import load_model
from common.sampling import SamplingParams
from common.stages import load_engine
from common.terminal import parser_of

from . import unseen
from .corpus import chat, exercises, facts, passages, stories, terms, unknown
from .tokenizer import FOLDER

# A question and the one right answer, from a random generator
TOPICS: dict[str, Callable[[Random], tuple[str, str]]] = {
    "facts": facts.exchange,
    "arithmetic": exercises.arithmetic,
    "terms": terms.exchange,
    "lists": exercises.lists,
    "passages": passages.exchange,
    "stories": stories.request,
    "reading": lambda rng: passages.reading(rng)[:2],
    "copies": unseen.copies,
    "strings": unseen.strings,
    "unknown": lambda rng: (rng.choice(unseen.QUESTIONS), unknown.ANSWER),
    "languages": lambda rng: (rng.choice(unseen.SENTENCES), unknown.ONLY_ENGLISH),
}
QUESTIONS = 200  # of each topic
STORY_TOKENS, ANSWER_TOKENS = 1500, 600


def story_is_sound(story: str, expected: str) -> bool:
    """Return whether a story has the same ordinals in order as the one of the program, and no sentence twice."""
    markers = re.compile(r"On the (\w+) day|Chapter (\d+)|(In the \w+|At noon),")
    sentences = re.split(r"(?<=[.!?])\s+", story)
    return len(set(sentences)) == len(sentences) and markers.findall(story) == markers.findall(expected)


def prompts(tokenizer, questions: list[str]) -> list[list[int]]:
    return [tokenizer(chat(question) + "<|im_start|>assistant\n")["input_ids"] for question in questions]


def evaluate(folder: Path) -> dict[str, float]:
    """Return the share of QUESTIONS questions (of stories: of a half) answered rightly, by topic."""
    loaded = load_model(str(folder))
    engine = load_engine("04")(loaded)
    scores = {}
    for topic, exchange in TOPICS.items():
        story = topic == "stories"
        rng = Random(f"evaluation/{topic}")
        pairs = [exchange(rng) for _ in range(QUESTIONS // 2 if story else QUESTIONS)]
        params = SamplingParams(max_tokens=STORY_TOKENS if story else ANSWER_TOKENS)
        completions = engine.generate(prompts(loaded.tokenizer, [question for question, _ in pairs]), params)
        right = [
            completion.finish_reason == "stop"
            and (story_is_sound(completion.text, wanted) if story else completion.text == wanted)
            for completion, (_, wanted) in zip(completions, pairs, strict=True)
        ]
        scores[topic] = sum(right) / len(right)
        print(f"{folder.name} {topic}: {scores[topic]:.1%}", flush=True)
    return scores


def acceptance(folder: Path) -> float:
    """Return the share of the draft's tokens that the target beside it accepts, four to a step, over all topics."""
    loaded = load_model(str(folder.parent / "target"))
    engine = load_engine("07")(loaded, draft=str(folder), num_draft_tokens=4)
    questions = []
    for topic, exchange in TOPICS.items():
        rng = Random(f"acceptance/{topic}")
        questions += [exchange(rng)[0] for _ in range(QUESTIONS // 10)]
    engine.generate(prompts(loaded.tokenizer, questions), SamplingParams(max_tokens=128))
    stats = engine.stats()
    share = stats["accepted_tokens"] / stats["draft_tokens"]
    print(f"{folder.name}: the target accepts {share:.1%} of {stats['draft_tokens']} draft tokens", flush=True)
    return share


def main() -> None:
    folder = FOLDER / parser_of("python -m common.checkpoints.evaluate", __doc__).parse_args().name
    scores = evaluate(folder)
    if folder.name == "draft":
        scores["acceptance"] = acceptance(folder)
    rounded = {topic: round(score, 4) for topic, score in scores.items()}
    (folder / "evaluation.json").write_text(json.dumps({"questions": QUESTIONS, **rounded}, indent=1) + "\n")


if __name__ == "__main__":
    main()
