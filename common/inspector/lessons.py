"""What the page says about each stage: what to look at, the lesson's question, and prompts that show it."""

from dataclasses import asdict, dataclass, field
from typing import Any

from common.checkpoints.corpus import SYSTEM_PROMPTS


@dataclass(frozen=True)
class Preset:
    """A request, or `count` of them at once, that the page can send. system: the chat template puts it first."""

    name: str
    prompt: str
    max_tokens: int = 128
    count: int = 1
    chat: bool = True
    system: str = ""
    temperature: float = 0.0


@dataclass(frozen=True)
class Lesson:
    """look: what to look at. question: the lesson asks it. options: defaults of the engine, so that memory is seen, and
    pieces of prompts.

    presets: the first one shows what the stage is about.
    """

    title: str
    look: str
    question: str
    presets: tuple[Preset, ...]
    options: dict[str, Any] = field(default_factory=dict)
    system: str = ""  # with which every request of the load begins

    def as_json(self) -> dict[str, Any]:
        described = asdict(self)
        del described["options"]
        return described


FACT = Preset("A fact", "The capital of France is", max_tokens=16, chat=False)
SUM = Preset("A sum", "What is 2+2?", max_tokens=32)
STORY = Preset("A story", "Tell me a story about a fox that lasts three days.", max_tokens=300, temperature=0.7)
FOUR = Preset(
    "Four stories at once",
    "Tell me a story about an owl that lasts two days.",
    max_tokens=240,
    count=4,
    temperature=0.7,
)
LONG_PROMPT = Preset(
    "A long prompt",
    "Read this. " + "The weather is mild. A cat sleeps on the wall. A boat passes the harbour. " * 40 + "Thank you.",
    max_tokens=24,
)
PASSAGE = "The capital of France is Paris. The capital of Italy is Rome. The capital of Japan is Tokyo."
COPY = Preset("Repeat a text", f"Repeat this text exactly: {PASSAGE}", max_tokens=96)
COUNT = Preset("Count", "Count from 1 to 30.", max_tokens=96)
QUEUE = Preset("Twelve questions at once", "Explain KV cache in one sentence.", max_tokens=64, count=12)
MANY = Preset(
    "Twelve stories at once",
    "Tell me a story about a robot that lasts four days.",
    max_tokens=400,
    count=12,
    temperature=0.7,
)
DESK = SYSTEM_PROMPTS[8]  # rules of a help desk, some 60 tokens long
SHARED = Preset("A question to the help desk", "What is 2+2?", max_tokens=48, system=DESK)
SHARED_FOUR = Preset("Four to the help desk", "Explain KV cache in one sentence.", max_tokens=64, count=4, system=DESK)

PIECES = {"token_budget": 256}  # of a long prompt are seen on a fast machine, too
LESSONS = {
    "01": Lesson(
        "Naive",
        "Each step runs the whole sequence through the model again to get one more token. Nothing is kept.",
        "How many tokens does the model run to write one?",
        (STORY, FACT, SUM),
    ),
    "02": Lesson(
        "KV cache",
        "The first step runs the prompt. Its keys and values are kept, so every later step runs one token.",
        "What grows while a request runs?",
        (STORY, FACT, SUM),
    ),
    "03": Lesson(
        "Streaming",
        "Every token is sent as soon as it is known. Requests still run one after the other.",
        "How long does the last request wait for its first token?",
        (QUEUE, SUM, STORY),
    ),
    "04": Lesson(
        "Continuous batching",
        "Every step runs all requests that have a slot. A request joins when a slot is free and leaves when it ends.",
        "How much of its slot does a request fill?",
        (QUEUE, SUM, STORY, LONG_PROMPT),
        {"max_running": 8, **PIECES},
    ),
    "05": Lesson(
        "Paged attention",
        "Memory is cut into pages. A request takes a page when it needs one. When none is free, the youngest request "
        "gives back all its pages and waits: it is preempted.",
        "Which request gives way when memory is full?",
        (MANY, FOUR, STORY, LONG_PROMPT),
        {"kv_memory": "15M", **PIECES},
    ),
    "06": Lesson(
        "Prefix cache",
        "Requests that begin alike share pages. A page stays in the tree when its request ends, until memory is short.",
        "Which tokens of a prompt were not computed?",
        (SHARED_FOUR, SHARED, STORY, MANY),
        {"kv_memory": "20M"},
        system=DESK,
    ),
    "07": Lesson(
        "Speculative decoding",
        "A drafter drafts the next tokens. The model checks them all in one pass and keeps those that it agrees with.",
        "How many tokens does one pass bring?",
        (COPY, COUNT, STORY, FOUR),
        {"kv_memory": "24M", "num_draft_tokens": 4},  # always, so that draft tokens are seen where they do not pay
    ),
    "08": Lesson(
        "Prefill and decode apart",
        "One worker runs prompts, another writes answers. The pages of a prompt travel between them.",
        "What becomes of a stream when its worker dies?",
        (FOUR, STORY, LONG_PROMPT, MANY),
        {"kv_memory": "24M", "workers": "ray", **PIECES},
    ),
}


def lesson_of(stage_name: str) -> Lesson:
    """Return the lesson of a stage's folder, or a plain one for a folder that is not part of the course."""
    digits = "".join(letter for letter in stage_name if letter.isdecimal())[:2]
    plain = Lesson(stage_name, "", "", (FACT, SUM, STORY, FOUR, LONG_PROMPT))
    return LESSONS.get(digits, plain)
