"""What a page is told: one update for all that has happened since the one before, as plain data for JSON.

The stream begins with a `hello` (view.hello) and goes on with updates; a recording holds the same. Times are
in seconds since the view began. Requests have numbers, from 0 in order of appearance. An update:

    {"now": 12.3,
     "steps": [{"i": 812, "s": 12.21, "e": 12.22, "works": [[4, "decode", 1], [5, "prefill", 96]], "counters": {...},
                "preempted": [6], "parts": {"model": 6.1, ...}, "drafts": [[4, [17, 23], 1]]}],
     "requests": [{"n": 5, "id": "request-5", "prompt": "...", "prompt_tokens": 120, "max_tokens": 64, "arrived": 12.2,
                   "text": [0, "Once"], "tokens": [[311, 12.22]], "cached": 32, "finish": "stop", "finished": 12.22}],
     "running": [4, 5], "waiting": [6], "stats": {...}, "words": {"311": "Once"},
     "memory": {...}, "pages": {"5": [7, 2, 9]}, "texts": {"7": "..."}}

A request comes whole the first time and afterwards with what is new; `text` is [from this character on, the new text].
`memory` is books.memory with numbers for ids, without `pages`, which come only for requests whose table has changed.
"""

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from common.engine import BaseEngine
from common.request import Request

from . import books

MAX_PROMPT = 2000  # characters of a prompt that a page is told
MAX_STEPS = 1000  # steps of the past that a page is told when it opens
MAX_KEPT = 20_000  # requests whose numbers and titles are kept
EVERY_TREE_TEXT = 4000  # nodes; a larger tree is sent without its texts


@dataclass
class Known:
    """What pages have been told."""

    steps: int = 0
    requests: dict[int, tuple[int, int]] = field(default_factory=dict)  # unfinished: number -> tokens, characters
    words: set[int] = field(default_factory=set)
    pages: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, tuple[int, ...]] = field(default_factory=dict)  # page -> tokens
    tree: list[list[int]] | None = None


class View:
    """Reads one engine, between two steps and on its thread."""

    def __init__(self, engine: BaseEngine):
        self.engine = engine
        self.origin, self.began = time.perf_counter(), time.time()
        self.extras: dict[int, dict[str, Any]] = {}  # by step: what the engine does not record of it
        self._numbers: dict[str, int] = {}
        self._next = itertools.count()
        self._titles: dict[tuple[int, ...], str] = {}

    def hello(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "began": round(self.began, 3),  # on the wall clock: two engines on one page began at two moments
            "model": engine.name,
            "device": str(engine.device),
            "kind": books.kind_of(engine),
            "sizes": books.sizes(engine),
            "can_pause": books.can_pause(engine),
        }

    def entitle(self, token_ids: list[int], title: str) -> None:
        """Show a question in place of the prompt with these ids, which has the chat template around it."""
        keep(self._titles, tuple(token_ids), title)

    def number(self, request_id: str) -> int:
        if request_id not in self._numbers:
            keep(self._numbers, request_id, next(self._next))
        return self._numbers[request_id]

    def update(self, known: Known, ended: Iterable[Request] = ()) -> dict[str, Any]:
        """Return all that is new to pages that have been told `known`, which is brought up to date."""
        words: dict[int, str] = {}
        known_now = sorted((*ended, *self.engine.requests.values()), key=lambda request: request.timings.arrival)
        requests = {request.request_id: request for request in known_now}
        for request_id in requests:  # numbers go by arrival, not by first step or by end
            self.number(request_id)
        update: dict[str, Any] = {"now": self._since(time.perf_counter()), "steps": self._steps(known, words)}
        rows = (self._request(known, request, words) for request in requests.values())
        update["requests"] = [row for row in rows if row]
        for name, ids in zip(("running", "waiting"), books.queue(self.engine), strict=True):
            update[name] = [self.number(request_id) for request_id in ids]
        update["stats"] = {name: round(value, 4) for name, value in self.engine.stats().items()}
        update |= self._memory(known)
        return update | ({"words": words} if words else {})

    def _since(self, moment: float) -> float:
        return round(moment - self.origin, 5)

    def _steps(self, known: Known, words: dict[int, str]) -> list[dict[str, Any]]:
        trace, found = self.engine.trace, []
        new = trace.since(max(known.steps, trace.steps - MAX_STEPS))
        known.steps = trace.steps
        for record in new:
            works = [[self.number(work.request_id), work.phase, work.tokens] for work in record.works]
            step = {"i": record.index, "s": self._since(record.start), "e": self._since(record.end), "works": works}
            if record.counters:
                step["counters"] = record.counters
            step |= self.extras.get(record.index, {})
            if drafts := step.get("drafts"):
                self._learn_words(known, [token_id for _, ids, _ in drafts for token_id in ids], words)
                step["drafts"] = [[self.number(name), ids, accepted] for name, ids, accepted in drafts]
            if preempted := step.get("preempted"):
                step["preempted"] = [self.number(request_id) for request_id in preempted]
            found.append(step)
        return found

    def _request(self, known: Known, request: Request, words: dict[int, str]) -> dict[str, Any] | None:
        number = self.number(request.request_id)
        row: dict[str, Any] = {"n": number}
        if number not in known.requests:
            row |= {
                "id": request.request_id,
                "prompt": self._prompt(request),
                "prompt_tokens": len(request.prompt_token_ids),
                "max_tokens": request.max_tokens,
                "arrived": self._since(request.timings.arrival),
            }
        tokens, characters = known.requests.pop(number, (0, 0))
        if len(request.token_ids) > tokens:
            times = request.timings.tokens[tokens:]
            row["tokens"] = [
                [token_id, self._since(moment)]
                for token_id, moment in zip(request.token_ids[tokens:], times, strict=False)
            ]
            self._learn_words(known, request.token_ids[tokens:], words)
        if len(request.text) != characters:  # fewer, if a stop string has been cut off
            start = min(characters, len(request.text))
            row["text"] = [start, request.text[start:]]
        if request.cached_tokens:
            row["cached"] = request.cached_tokens
        if request.finished:
            row |= {"finish": request.finish_reason, "finished": self._since(request.timings.finished)}
        else:
            known.requests[number] = len(request.token_ids), len(request.text)
        return row if row.keys() - {"n", "cached"} else None

    def _prompt(self, request: Request) -> str:
        tokenizer, ids = self.engine.tokenizer, request.prompt_token_ids
        if title := self._titles.get(tuple(ids)):
            return title
        if tokenizer is None:
            return f"{len(ids)} token ids"
        return tokenizer.decode(ids[:MAX_PROMPT], skip_special_tokens=True)[:MAX_PROMPT].strip()

    def _learn_words(self, known: Known, token_ids: Iterable[int], words: dict[int, str]) -> None:
        """Tell each token's own text once, for those that pages draw as boxes."""
        if self.engine.tokenizer is None:
            return
        for token_id in set(token_ids) - known.words:
            words[token_id] = self.engine.tokenizer.decode([token_id])
            known.words.add(token_id)

    def _memory(self, known: Known) -> dict[str, Any]:
        memory = books.memory(self.engine)
        pages = {self.number(name): table for name, table in memory.pop("pages", {}).items()}
        news = {"pages": {number: table for number, table in pages.items() if known.pages.get(number) != table}}
        known.pages = pages
        for name, value in memory.items():
            if isinstance(value, dict):
                memory[name] = {self.number(request_id): entry for request_id, entry in value.items()}
        tree = memory.pop("tree", None)
        if tree != known.tree:
            memory["tree"], known.tree = tree, tree
            if tree is not None and len(tree) <= EVERY_TREE_TEXT and self.engine.tokenizer is not None:
                news["texts"] = self._page_texts(known)
        return {"memory": memory} | {name: value for name, value in news.items() if value}

    def _page_texts(self, known: Known) -> dict[int, str]:
        nodes = books.nodes(self.engine.scheduler.allocator.tree)
        texts, tokens = {}, {node.page: node.tokens for node in nodes}
        for page, token_ids in tokens.items():
            if known.texts.get(page) != token_ids:
                text = [token_id for token_id in token_ids if token_id >= 0]  # without a salt (request.py)
                texts[page] = self.engine.tokenizer.decode(text, skip_special_tokens=True)
        known.texts = tokens
        return texts


def keep(kept: dict, key: Any, value: Any) -> None:
    """Put an entry into a dict that forgets the oldest ones."""
    kept[key] = value
    if len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]
