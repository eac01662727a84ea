"""Faults in OpenAI's API and in scoring, which a learner meets in stages 03 and 06."""

from .fault import Fault

API, FAIRNESS = "tests/serving/test_openai_api.py::{}", "tests/serving/test_openai_fairness.py::{}"

FAULTS = [
    Fault(
        number=32,
        stage="03",
        symptom="With n=3, temperature=1 and a seed, all three choices are the same.",
        difficulty=1,
        hints=(
            "A seed makes a call repeatable. Does it make its choices equal?",
            "Which parameters does each choice of one call get?",
        ),
        story="A call with a seed must give the same choices when it is sent again, and choices that differ from "
        "each other. Hand the seed to each choice as it is, and there is one answer, three times. In mlx-vlm "
        "all rows of a batch drew from the same place of the same stream.",
        source="Blaizzy/mlx-vlm#1818",
        file="common/serving/openai_api/routes.py",
        old="seed = None if params.seed is None else (params.seed + number) % 2**63",
        new="seed = params.seed",
        caught_by=API.format("test_a_seed_repeats_the_choices_of_a_call_and_they_differ"),
        reproduce="""
from serving_openai import openai_server

with openai_server("03", loaded) as service:
    options = {"temperature": 1.0, "seed": 5, "n": 3, "max_tokens": 12}
    answer = service.client.completions.create(model=service.name, prompt=STORY, **options)
texts = {choice.text for choice in answer.choices}
assert len(texts) == 3, texts
""",
    ),
    Fault(
        number=33,
        stage="03",
        symptom="Clients that stream with `chunk.choices[0]`, as in every tutorial, end with an IndexError.",
        difficulty=1,
        hints=(
            "Which chunk has no choices, and which clients ask for it?",
            "Print the last chunks of a stream, with `stream_options` and without.",
        ),
        story="OpenAI's API has one chunk without choices: the usage, at the end, if `stream_options.include_usage` "
        "asks for it. Send it to every client, and programs that never heard of it fail on the last line of a good "
        "answer. apfel did, and broke the official examples.",
        source="Arthur-Ficial/apfel#100",
        file="common/serving/openai_api/routes.py",
        old="            if body.include_usage:\n                yield event(dump(",
        new="            yield event(dump(",
        caught_by=API.format("test_streamed_text_is_the_unstreamed_text"),
        reproduce="""
from serving_openai import openai_server

with openai_server("03", loaded) as service:
    options = {"max_tokens": 4, "stream": True}
    chunks = list(service.client.completions.create(model=service.name, prompt=STORY, **options))
assert all(chunk.choices for chunk in chunks), chunks[-1]
""",
    ),
    Fault(
        number=34,
        stage="06",
        symptom="An evaluation with `echo` and `logprobs` gives random scores on a GPU while other requests run.",
        difficulty=3,
        hints=(
            "Which model scores a prompt, and which model runs the steps?",
            "On a GPU the engine's model is wrapped: CUDA graphs keep the logits of their last replay.",
        ),
        story="The wrapper of CUDA graphs computes the logits in the graph, and returns them when it is asked. "
        "A caller that asks for logits of other hidden states, with as many rows by chance, gets those of the last "
        "decode step. This repository scored prompts with the engine's own model until that commit.",
        source="this repository, commit b541c3e",
        file="common/serving/scoring.py",
        old="model = unwrapped(self._engine.model)",
        new="model = self._engine.model",
        caught_by=FAIRNESS.format("test_scoring_uses_the_model_without_the_engines_wrappers"),
        reproduce="""
from common.serving.scoring import Scoring, ScoringParams


class LastReplay:  # in place of CUDA graphs: the logits of another batch
    def __init__(self, model):
        self.model, self.config, self.cos = model, model.config, model.cos

    def __call__(self, *inputs):
        return self.model(*inputs)

    def logits(self, hidden):
        return self.model.logits(hidden.flip(0))


engine = Engine(loaded)
scores = []
for model in (loaded.model, LastReplay(loaded.model)):
    engine.model = model
    scoring = Scoring(engine)
    scores.append(scoring.add(list(range(100, 120)), ScoringParams(logprobs=0)))
    scoring.step()
assert scores[0].logprobs == scores[1].logprobs
""",
    ),
]
