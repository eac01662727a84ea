"""Run the engine of a stage on several ranks, with the tokens that it has on one.

Every rank runs the same engine on its own part of the model (shard.py). Rank 0 forwards each call to the others, and
all do the same: the same requests in the same order give the same schedule, and the same logits on every rank give the
same samples. So a step sends only its name and the tokens that rank 0 sampled in the step before; a rank that sampled
others fails.

This needs engines whose decisions depend on their inputs alone. An engine that decides by measured times would decide
differently on each rank; such engines are refused.
"""

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
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from ..acceleration.accelerate import make_engine
from ..acceleration.graphs import forget_recordings
from ..engine import Around, BaseEngine
from ..errors import InvalidInput
from ..loader import load_model, weights
from ..loader.shard import Shard
from ..process import freeze_loaded_objects
from ..request import Request
from ..sampling import SamplingParams
from ..stages import load_engine, stage_folder
from .ranks import LEAVING_SECONDS, RankLost, Ranks, join_group, use_threads


class TensorParallelEngine(Around):
    """Obey the engine contract on all ranks. After a lost rank, `add`, `step` and `check` raise RankLost.

    ranks: they run one engine at a time; a new one replaces the one before. stage: as for `load_engine`. options: those
    of its Engine and of `make_engine`, with `kv_memory` per rank. All other attributes are those of rank 0's engine.
    """

    generate, advance = BaseEngine.generate, BaseEngine.advance  # with the `add`, `step` and `abort` from here

    def __init__(self, ranks: Ranks, stage: str | Path, **options: Any):
        check_deterministic(load_engine(stage), options)
        self._ranks = ranks
        self._sampled: list = []  # in the step before
        self._thread: int | None = None  # the thread of the last step
        with ranks.in_step():
            ranks.tell("make", options, stage_folder(stage))
            self._engine = make_engine(load_engine(stage), ranks.loaded, **options)
        ranks.answers()
        self.startup_notes = "; ".join(filter(None, [ranks.startup_notes, self._engine.startup_notes]))

    def add(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, request_id: str | None = None
    ) -> Request:
        request = self._engine.add(prompt, params, request_id)  # raises before the other ranks hear of a bad prompt
        # Send the seed that this rank has drawn: otherwise each draws its own. `params.seed` stays as requested.
        self._ranks.tell("add", request.prompt_token_ids, request.params, request.request_id, request.seed)
        return request

    def step(self) -> list[Request]:
        if not self._engine.has_unfinished:
            return []
        if self._thread != threading.get_ident():  # the number of threads is a setting of the thread that computes
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
            with suppress(RankLost):  # all ranks have ended, and the request with them
                self._ranks.tell("abort", request_id)

    def check(self) -> None:
        """Raise AssertionError also if another rank's bookkeeping is inconsistent, or differs from rank 0's."""
        self._engine.check()
        self._ranks.tell("check")
        for rank, stats in enumerate(self._ranks.answers(), 1):
            assert stats == self.stats(), f"rank {rank} has {stats}, and rank 0 has {self.stats()}"

    def close(self) -> None:
        """End all other ranks. Afterwards this engine cannot be used."""
        self._ranks.close()


def check_deterministic(engine_class: type[BaseEngine], options: dict[str, Any]) -> None:
    """Raise InvalidInput if ranks that run this engine would take different decisions."""
    parameters = inspect.signature(engine_class).parameters
    if "workers" in parameters:
        raise InvalidInput("in stage 08 each worker has one process: use --tensor-parallel with stages 01 to 07")
    if "num_draft_tokens" in parameters and options.get("num_draft_tokens") is None:
        raise InvalidInput(
            "an adaptive number of draft tokens depends on measured times, which differ from rank to rank: with tensor "
            "parallelism give --num-draft-tokens"
        )


def sampled_tokens(changed: Sequence[Request]) -> list[tuple[int, list[int]]]:
    """Return what a step has sampled: for each request, its number of output tokens and the last of them."""
    return [(len(request.token_ids), request.token_ids[-1:]) for request in changed]


class Follower:
    """A rank other than 0. Its methods are the commands of rank 0; `answer` sends a value back to rank 0."""

    def __init__(self, answer: Callable[[Any], None]):
        self.answer = answer
        self.sampled: list = []

    def join(self, rank: int, count: int, port: int, device: torch.device, model: dict[str, Any], threads: int) -> None:
        """Load a part of the model and join the process group. This is the first command.

        port: of rank 0's store, where all ranks meet. model: arguments for `load_model`.
        """
        use_threads(threads)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # for kernels that run on the current device
        weights.PROGRESS_BYTES = math.inf  # rank 0 reports for all
        self.loaded = load_model(**model, device=device, shard=Shard(rank, count))
        self.answer("loaded")
        join_group(dist.TCPStore("127.0.0.1", port, is_master=False), self.loaded.shard, device)

    def make(self, options: dict[str, Any], stage: str | Path) -> None:
        """Build the engine of a stage, in place of the one before."""
        self.engine, self.sampled = None, []  # free the memory of the engine before
        self.engine = make_engine(load_engine(stage), self.loaded, **options)
        freeze_loaded_objects()  # A garbage collection on one rank would stop all of them.
        self.answer("made")

    def add(self, token_ids: list[int], params: SamplingParams, request_id: str, seed: int) -> None:
        self.engine.add(token_ids, params, request_id).seed = seed

    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)

    def step(self, sampled: list) -> None:
        """Run one step. sampled: what rank 0 sampled in the step before; raise RuntimeError if this rank differs."""
        if sampled != self.sampled:
            raise RuntimeError(f"it sampled {self.sampled}, but rank 0 sampled {sampled} (lengths and last tokens)")
        self.sampled = sampled_tokens(self.engine.step())

    def check(self) -> None:
        self.engine.check()
        self.answer(self.engine.stats())


def follow() -> None:
    """Run a rank other than 0: read commands from stdin and write answers to stdout, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to stderr, not between the answers
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
        # If rank 0 is gone, errors of the connection to it need no traceback.
        if not isinstance(error, (InvalidInput, OSError)) and not ends(commands):
            traceback.print_exc()
        with suppress(OSError):
            answer(RankLost(f"{type(error).__name__}: {error}"))
        os._exit(1)
    if dist.is_initialized():
        forget_recordings()
        dist.destroy_process_group()
    os._exit(0)  # torch's cleanup would take a second, and rank 0 waits for this process


def ends(commands: SimpleQueue) -> bool:
    """Return whether the commands end within a second: a collective may notice before the pipe that rank 0 is gone."""
    try:
        while commands.get(timeout=1.0) is not None:
            pass
    except Empty:
        return False
    return True


def listen(pipe: BinaryIO, commands: SimpleQueue) -> None:
    """Put all commands into the queue, then None. When the pipe ends, end this process within LEAVING_SECONDS.

    Run on a thread, which notices the end of the pipe even while a collective waits for rank 0.
    """
    with suppress(EOFError):
        while True:
            commands.put(pickle.load(pipe))
    commands.put(None)
    time.sleep(LEAVING_SECONDS)
    os._exit(1)
