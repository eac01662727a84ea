"""A short scene for each stage, played on its engine without a server: what a recording or a picture of it shows."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from common.checkpoints.corpus import facts, stories, terms
from common.loader import Loaded
from common.sampling import SamplingParams
from common.stages import load_engine, stage_folder

from .feed import Feed
from .lessons import COPY, COUNT, DESK, LONG_PROMPT, Preset, lesson_of
from .load import Titles, chat_tokens
from .watched import Watched


class Tape(Feed):
    """A feed with one reader, which keeps all."""

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []
        self._welcomed = False

    @property
    def readers(self) -> int:
        return 1

    def newcomers(self) -> list[Any]:
        welcomed, self._welcomed = self._welcomed, True
        return [] if welcomed else [self]

    def all_but(self, newcomers: Iterable[Any]) -> set[Any]:
        return set() if newcomers else {self}

    def publish(self, update: str, readers: Iterable[Any]) -> None:
        self.lines.append(update)


@dataclass(frozen=True)
class Scene:
    """Requests by the step before which they arrive, and when it ends. options: of the engine, beside the lesson's."""

    arrivals: tuple[tuple[int, Preset], ...]
    steps: int
    options: dict[str, Any] = field(default_factory=dict)


def questions(
    count: int, first: int, every: int, seed: str, system: str = "", most: int = 160
) -> list[tuple[int, Preset]]:
    """Ask questions as users do, one every few steps."""
    rng, found = Random(seed), []
    for at in range(count):
        prompt, answer = rng.choice((facts.exchange, terms.exchange, stories.request))(rng)
        length = min(most, max(12, len(answer) // 4))
        found.append((first + at * every, Preset("", prompt, max_tokens=length, system=system)))
    return found


def story(hero: str, tokens: int, days: str = "four") -> Preset:
    return Preset("", f"Tell me a story about {hero} that lasts {days} days.", max_tokens=tokens, temperature=0.7)


HEROES = ("a fox", "an owl", "a baker", "a robot", "a turtle", "a king", "a sailor", "a crow", "a lion", "a miller")
SCENES = {
    "01": Scene(((0, story("a fox", 40)), (10, Preset("", "What is 2+2?", max_tokens=12))), 44),
    "02": Scene(((0, story("a fox", 90)), (30, Preset("", "What is 2+2?", max_tokens=12))), 80),
    "03": Scene(((0, story("a fox", 60)), *questions(7, 5, 6, "03", most=40)), 130),
    "04": Scene((*[(3 * i, story(hero, 60 + 10 * i)) for i, hero in enumerate(HEROES[:5])], *questions(14, 12, 7, "04"),
                 (60, LONG_PROMPT)), 120, {"max_running": 8}),
    "05": Scene(tuple((4 * i, story(hero, 400)) for i, hero in enumerate(HEROES)), 215, {"kv_memory": "12M"}),
    "06": Scene((*questions(12, 0, 9, "06", DESK, 60), (20, story("a fox", 150)), (23, story("an owl", 150))),
                112, {"kv_memory": "12M"}),
    "07": Scene(((0, COPY), (5, COUNT), (12, story("a fox", 160))), 40, {"kv_memory": "10M"}),
    "08": Scene((*[(5 * i, story(hero, 160)) for i, hero in enumerate(HEROES[:5])], (60, LONG_PROMPT),
                 *questions(4, 64, 8, "08")), 140, {"kv_memory": "16M", "workers": "local", "num_draft_tokens": 0}),
}  # fmt: skip


def play(number: str, loaded: Loaded) -> list[str]:
    """Yield the lines of a recording of a stage's scene: its hello, and its updates."""
    scene, stage = SCENES[number], stage_folder(number)
    options = {name: value for name, value in lesson_of(stage.name).options.items() if name != "workers"}
    titles = Titles()
    watched = Watched(load_engine(number)(loaded, **options | scene.options), titles)
    watched.feed = tape = Tape()
    tape.lines.append("")
    arrivals = sorted(scene.arrivals, key=lambda pair: pair[0])
    steps = 0
    while steps < scene.steps and (arrivals or watched.has_unfinished):
        while arrivals and arrivals[0][0] <= steps:
            add(watched, titles, arrivals.pop(0)[1])
        watched.look_soon()  # a recording is played slowly, and each step of it has a moment of its own
        watched.step()
        steps = max(steps + 1, watched.trace.steps) if number == "08" else steps + 1
    return [hello(watched, stage), *tape.lines[1:]]


def add(watched: Watched, titles: Titles, preset: Preset) -> None:
    token_ids = chat_tokens(watched.tokenizer, preset.prompt, preset.system)
    titles[tuple(token_ids)] = preset.prompt
    watched.add(
        token_ids,
        SamplingParams(max_tokens=preset.max_tokens, temperature=preset.temperature, seed=watched.trace.steps),
    )


def hello(watched: Watched, stage: Path) -> str:
    return json.dumps(watched.view.hello() | {"name": stage.name, "lesson": lesson_of(stage.name).as_json()})
