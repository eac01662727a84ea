"""Clients on the server's own event loop: a prompt that the page sends, and a load of n clients.

They are here and not in the browser, which opens at most six connections to a server. Like any client they hand their
requests to the engine's thread, and read their answers to the end.
"""

import asyncio
import itertools
from random import Random

from common.checkpoints.corpus import exercises, facts, stories, terms
from common.checkpoints.corpus.words import an
from common.errors import InvalidInput
from common.loader import chat_prompt
from common.request import check_prompt_length
from common.sampling import SamplingParams
from common.serving.errors import EngineDead, QueueFull

from .lessons import LONG
from .view import View

TOPICS = (facts.exchange, exercises.lists, terms.exchange, stories.request)
HEROES = [an(hero) for hero in stories.STORIES["heroes"]]
TERMS = [term["phrase"] for term in terms.TERMS]
EVERY_LONG = 6  # With long prompts, one of this many requests is long.
MAX_CLIENTS = 64
BACK_OFF_SECONDS = 0.5  # from a refusal to the next try


def filled(prompt: str, number: int) -> str:
    """Return a prompt with a hero and a term of its own in place of {hero} and {term}, so that rows differ."""
    hero, term = (names[number % len(names)] for names in (HEROES, TERMS))
    return prompt.replace("{hero}", hero).replace("{term}", term)


class Clients:
    """All that a page sends to an EngineThread. system: every question of the load begins with it."""

    def __init__(self, engine_thread, view: View, system: str):
        self.thread, self.view, self.system = engine_thread, view, system
        self.long_prompts = False
        self._clients: list[asyncio.Task] = []
        self._readers: set[asyncio.Task] = set()  # of single requests: a task without a reference may be collected
        self._jobs = itertools.count()

    @property
    def count(self) -> int:
        return len(self._clients)

    def resize(self, count: int) -> None:
        """Start or stop clients until there are this many."""
        while len(self._clients) > count:
            self._clients.pop().cancel()
        while len(self._clients) < count:
            self._clients.append(asyncio.create_task(self._client()))

    async def send(self, prompt: str, params: SamplingParams, *, count: int = 1, chat: bool = True, system: str = ""):
        """Submit a prompt `count` times; return the ids of the requests. Errors are those of `submit_all`."""
        prompts = [await self._token_ids(filled(prompt, number), chat, system) for number in range(count)]
        streams = await self.thread.submit_all([(each, params) for each in prompts])
        for stream in streams:
            task = asyncio.create_task(stream.finished())
            self._readers.add(task)
            task.add_done_callback(self._readers.discard)
        return [stream.request.request_id for stream in streams]

    async def _token_ids(self, prompt: str, chat: bool, system: str) -> str | list[int]:
        tokenizer = self.thread.tokenizer
        if not chat or tokenizer is None or tokenizer.chat_template is None:
            return prompt
        check_prompt_length(len(prompt), tokenizer, self.thread.engine.config)
        token_ids = await self.thread.beside(chat_prompt, tokenizer, prompt, system)
        self.view.entitle(token_ids, prompt)
        return token_ids

    async def _client(self) -> None:
        """Ask one question after another as one client, and read each answer to its end."""
        while True:
            number = next(self._jobs)
            rng = Random(number)
            prompt, answer = TOPICS[number % len(TOPICS)](rng)
            if self.long_prompts and number % EVERY_LONG == EVERY_LONG - 1:
                prompt = LONG
            params = SamplingParams(max_tokens=min(400, max(16, len(answer) // 3)), temperature=0.0)
            try:
                stream = await self.thread.submit(await self._token_ids(prompt, True, self.system), params)
            except (QueueFull, InvalidInput):
                await asyncio.sleep(BACK_OFF_SECONDS)
                continue
            except EngineDead:
                return
            try:
                await stream.finished()
            except asyncio.CancelledError:
                self.thread.abort(stream)
                raise
