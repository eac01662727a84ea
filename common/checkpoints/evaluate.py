"""What a bundled checkpoint can do: the share of held-out questions that it answers word for word, greedily.

    python -m common.checkpoints.evaluate target        # a minute or two; writes target/evaluation.json

The questions come from the corpus program with a seed that training never used. Facts, terms and sums are still the
ones it was trained on, since there are no others: for these it is a test of memory. Names, numbers, codes and texts in
passages are new each time: there it is a test of reading. A story has no one right text, so it counts as right if it
ends by itself, has the days it was asked for in their order, and does not repeat a sentence.
"""

import argparse
import json
import re
from random import Random

from common.loader import load_model
from common.sampling import SamplingParams
from common.stages import load_engine

from .corpus import arithmetic, chat, facts, lists, passages, stories, terms
from .tokenizer import FOLDER

TOPICS = {"facts": facts, "arithmetic": arithmetic, "terms": terms, "lists": lists, "passages": passages}


def story_is_sound(story: str, expected: str) -> bool:
    """The same sequence of ordinals as in the story that the program wrote for this request; no sentence twice."""
    markers = re.compile(r"On the (\w+) day|Chapter (\d+)|(In the \w+|At noon),")
    sentences = re.split(r"(?<=[.!?])\s+", story)
    return len(set(sentences)) == len(sentences) and markers.findall(story) == markers.findall(expected)


def evaluate(name: str, count: int) -> dict[str, float]:
    loaded = load_model(name)
    engine = load_engine("02")(loaded)

    def answer(question: str, max_tokens: int) -> tuple[str, bool]:
        prompt = loaded.tokenizer(chat(question) + "<|im_start|>assistant\n")["input_ids"]
        [completion] = engine.generate([prompt], SamplingParams(max_tokens=max_tokens))
        return completion.text, completion.finish_reason == "stop"

    scores = {}
    for topic, module in TOPICS.items():
        rng = Random(f"evaluation/{topic}")
        pairs = [module.exchange(rng) for _ in range(count)]
        scores[topic] = sum(answer(question, 400) == (wanted, True) for question, wanted in pairs) / count
        print(f"{name} {topic}: {scores[topic]:.1%}", flush=True)
    rng, sound, few = Random("evaluation/stories"), 0, max(1, count // 10)
    for _ in range(few):
        question, wanted = stories.request(rng)
        story, ended = answer(question, 1500)
        sound += ended and story_is_sound(story, wanted)
    scores["stories"] = sound / few
    print(f"{name} stories: {scores['stories']:.1%}")
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["target", "draft"])
    parser.add_argument("--count", type=int, default=200, help="questions per topic (default: 200; stories: a tenth)")
    args = parser.parse_args()
    scores = {topic: round(score, 4) for topic, score in evaluate(args.name, args.count).items()}
    (FOLDER / args.name / "evaluation.json").write_text(
        json.dumps({"questions": args.count, **scores}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
