"""The engine of a stage on several ranks, which computes what it computes on one.

Every rank runs the same engine on its own part of the model (shard.py). What rank 0 is asked it tells the others,
and all do the same: the same requests in the same order bring the same schedule, and as all have the same logits, each
samples the same tokens by itself. So a step sends little more than the word that it begins: what rank 0 sampled in the
one before, so that ranks which differ against all reason are found out.

That holds for engines that decide by what they know. One that decides by what it measures, by the time for example,
would decide something else on each rank; such engines are refused.
"""

import importlib
import inspect
import math
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from ..engine import BaseEngine
from ..gpu.accelerate import make_engine
from ..loader import load_model, weights
from ..process import freeze_loaded_objects
from ..request import Request
from ..sampling import SamplingParams
from ..stages import load_engine, stage_folder
from .ranks import LEAVING_SECONDS, RankLost, Ranks, meet, use_threads
from .shard import Shard


class TensorParallelEngine:
    """Obeys the engine contract, with RankLost from `add`, `step` and `check` once a rank is lost, and `close`.

    ranks: has one engine at a time; a new one takes the place of the one before. stage: as for `load_engine`. options:
    those of its Engine and of `make_engine`, with `kv_memory` for each rank. Whatever is not defined here is what rank
    0's own engine has.
    """

    generate = BaseEngine.generate  # in terms of `add`, `step` and `abort`

    def __init__(self, ranks: Ranks, stage: str | Path, **options: Any):
        engine_class = load_engine(stage)
        check_deterministic(engine_class, options)
        self._ranks = ranks
        self._sampled: list = []  # in the step before
        self._thread: int | None = None  # that has made the last step
        with ranks.in_step():
            ranks.tell("build", stage_folder(stage), options)
            self._engine: BaseEngine = make_engine(engine_class, ranks.loaded, **options)
        ranks.answers()
        self.startup_notes = "; ".join(filter(None, [ranks.why, self._engine.startup_notes]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> Request:
        request = self._engine.add(prompt, params, request_id)  # what it refuses, nobody else hears of
        # With the seed that this rank has drawn, or each would draw its own; the parameters say if one was asked for.
        self._ranks.tell("add", request.prompt_token_ids, request.params, request.request_id, request.seed)
        return request

    def step(self) -> list[Request]:
        if not self._engine.has_unfinished:
            return []
        if self._thread != threading.get_ident():  # how many threads compute is set for each thread that asks them to
            self._thread = threading.get_ident()
            use_threads(self._ranks.threads)
        with self._ranks.in_step():
            self._ranks.tell("step", self._sampled)
            changed = self._engine.step()
        self._sampled = sampled_tokens(changed)
        return changed

    def abort(self, request_id: str) -> None:
        if request_id in self._engine.requests:
            self._engine.abort(request_id)
            with suppress(RankLost):  # then there is nothing left to abort
                self._ranks.tell("abort", request_id)

    def check(self) -> None:
        """AssertionError also if another rank's books do not balance, or are not the same."""
        self._engine.check()
        self._ranks.tell("check")
        for rank, stats in enumerate(self._ranks.answers(), 1):
            assert stats == self.stats(), f"rank {rank} has {stats}, and rank 0 has {self.stats()}"

    def close(self) -> None:
        """Ends all other ranks; this engine cannot be used any more."""
        self._ranks.close()


def check_deterministic(engine_class: type[BaseEngine], options: dict[str, Any]) -> None:
    """ValueError if ranks that run this engine would not all take the same decisions."""
    parameters = inspect.signature(engine_class).parameters
    if "workers" in parameters:
        raise ValueError(
            "an engine that is a router before workers of its own cannot be shared by ranks: "
            "use tensor parallelism with the stages before it"
        )
    if "num_draft_tokens" in parameters and options.get("num_draft_tokens") is None:
        raise ValueError(
            "how many draft tokens pay is found out by measuring times, which differ from rank to rank: "
            "with tensor parallelism give --num-draft-tokens"
        )


def sampled_tokens(changed: Sequence[Request]) -> list[tuple[int, list[int]]]:
    """What a step has sampled: for each request, how many tokens it has by now, and the last one."""
    return [(len(request.token_ids), request.token_ids[-1:]) for request in changed]


class Follower:
    """A rank other than 0. Its methods are what it can be told; `answer` sends something back."""

    def __init__(self, answer: Callable[[Any], None]):
        self.answer = answer
        self.sampled: list = []

    def join(self, rank: int, count: int, port: int, device: torch.device, model: dict[str, Any], threads: int) -> None:
        """The first command. port: of rank 0's store, where all meet. model: arguments for `load_model`."""
        use_threads(threads)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # for kernels that ask for the current one
        weights.PROGRESS_BYTES = math.inf  # rank 0 shows it for all
        self.loaded = load_model(**model, device=device, shard=Shard(rank, count))
        self.answer("loaded")
        meet(dist.TCPStore("127.0.0.1", port, is_master=False), self.loaded.shard, device)

    def build(self, stage: Path, options: dict[str, Any]) -> None:
        self.engine, self.sampled = None, []  # first the memory of the one before
        self.engine = make_engine(load_engine(stage), self.loaded, **options)
        freeze_loaded_objects()  # a pause for garbage on one rank is a pause for all
        self.answer("built")

    def make(self, module: str, function: str, options: dict[str, Any], *arguments: Any) -> None:
        """Make something else than an engine, whose methods are then to be called."""
        self.engine = getattr(importlib.import_module(module), function)(self.loaded, options, *arguments)
        freeze_loaded_objects()
        self.answer("made")

    def call(self, method: str, *arguments: Any) -> None:
        self.result = getattr(self.engine, method)(*arguments)

    def agree(self, name: str, expected: list[tuple]) -> None:
        """Fail if an attribute of the last call's result is not what rank 0 has (compared in their first fields)."""
        found = [tuple(one[: len(other)]) for one, other in zip(getattr(self.result, name), expected, strict=False)]
        if found != [tuple(other) for other in expected]:
            raise RuntimeError(f"its {name} are {found}, and rank 0 has {expected}")

    def add(self, token_ids: list[int], params: SamplingParams, request_id: str, seed: int) -> None:
        self.engine.add(token_ids, params, request_id).seed = seed

    def step(self, sampled: list) -> None:
        """sampled: by rank 0, in the step before."""
        if sampled != self.sampled:
            raise RuntimeError(f"it has sampled {self.sampled}, and rank 0 {sampled} (lengths, and last tokens)")
        self.sampled = sampled_tokens(self.engine.step())

    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)

    def check(self) -> None:
        self.engine.check()
        self.answer(self.engine.stats())


def follow() -> None:
    """The program of every rank but 0: commands come on stdin, answers go to stdout, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints belongs on stderr
    commands: SimpleQueue = SimpleQueue()
    threading.Thread(target=listen, args=(sys.stdin.buffer, commands), daemon=True).start()

    def answer(value: Any) -> None:
        pickle.dump(value, replies)
        replies.flush()

    follower = Follower(answer)
    try:
        while (command := commands.get()) is not None:
            method, arguments = command
            getattr(follower, method)(*arguments)
    except Exception as error:
        # If commands have ended rank 0 is gone, and that it cannot be reached is no news.
        if commands.empty() and not isinstance(error, (ValueError, OSError)):
            traceback.print_exc()
        with suppress(OSError):
            answer(RankLost(f"{type(error).__name__}: {error}"))
        os._exit(1)
    if dist.is_initialized():
        dist.destroy_process_group()
    os._exit(0)  # rank 0 waits for it, and to tidy up after torch takes a second


def listen(pipe: BinaryIO, commands: SimpleQueue) -> None:
    """On a thread of its own, since the end of the pipe has to be noticed also where a collective waits for rank 0."""
    with suppress(EOFError):
        while True:
            commands.put(pickle.load(pipe))
    commands.put(None)
    time.sleep(LEAVING_SECONDS)
    os._exit(1)
