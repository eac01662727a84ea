"""Start the processes of tensor parallelism, send them commands, and end them together.

Rank 0 is the caller's process. It starts the others, which load their own parts of the model (shard.py) and then run
the commands of rank 0 (engine.py). Tensors inside a layer go through torch.distributed: over NCCL on CUDA, over gloo on
the CPU. Commands go to each process through a pipe and not through a collective. A rank may wait for the next command
for days, which a collective would take for a failure; and the end of the pipe tells the rank that rank 0 is gone, for
whatever reason.

Production engines have this shape (vLLM's multiprocessing executor, SGLang's scheduler on each GPU). They send commands
through shared memory, and start ranks on other machines too.
"""

import atexit
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from ..acceleration.graphs import forget_recordings
from ..errors import InvalidInput, counted
from ..loader import load_model
from ..loader.device import choose_device
from ..loader.shard import Shard
from ..stages import ROOT

COLLECTIVE_SECONDS = 60.0  # a rank that keeps the others waiting in a collective for longer counts as hung
ANSWER_SECONDS = 60.0  # So does a rank that takes this much longer than rank 0, or does not read its commands.
LOADING_SECONDS = 600.0  # for a rank to load its part once rank 0 has its own: all may read one slow disk
NOTICING_SECONDS = 2.0  # from a broken connection until `_listen` knows the reason
LEAVING_SECONDS = 5.0  # for a rank to end by itself
FOLLOW = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from common.parallel.engine import follow; follow()"


class RankLost(ConnectionError):
    """A rank has ended or failed. All other ranks have been ended too, and nothing more can be computed."""


class Ranks:
    """Start `count` processes that share a model, this one included; other arguments as for `load_model`.

    On CUDA rank r uses cuda:r; on a CPU each rank has its share of the cores. Raise InvalidInput if the machine has too
    few GPUs, or if this process has ranks already. The ranks end with `close`, with this process, or after a RankLost.
    """

    def __init__(
        self,
        count: int,
        name_or_path: str | os.PathLike | None = None,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        load_format: str = "auto",
        kv_dtype: str = "auto",
    ):
        if dist.is_initialized():
            raise InvalidInput("this process has ranks already: close their engine first")
        self.count = count
        self.device, self.dtype, self.threads = choose_place(count, device, dtype)
        self.failure: str | None = None
        self._failed = threading.Event()  # set with `failure`
        self._ending = False
        self._lock = threading.Lock()
        self._late: tuple[float, str] | None = None  # the deadline of rank 0's present wait, and the reason if missed
        self._threads_before = torch.get_num_threads()
        self._followers: list[subprocess.Popen] = []
        self._answers: list[SimpleQueue] = []
        atexit.register(self.close)
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()
        try:
            store = open_store()
            model = {"name_or_path": name_or_path, "dtype": self.dtype, "load_format": load_format}
            model["kv_dtype"] = kv_dtype
            for rank in range(1, count):
                self._start(rank)
                self._send(rank, "join", rank, count, store.port, self._device_of(rank), model, self.threads)
            use_threads(self.threads)  # the others load at the same time
            self.loaded = load_model(**model, device=self._device_of(0), shard=Shard(0, count))
            self.answers(LOADING_SECONDS)  # wait until all have loaded: joining the group has a short deadline
            join_group(store, self.loaded.shard, self.loaded.device)
        except BaseException:
            self.close()
            raise

    @property
    def startup_notes(self) -> str:
        if self.device.type == "cuda":
            return f"ranks={self.count} (cuda:0 to cuda:{self.count - 1}, over NCCL)"
        threads = "a thread" if self.threads == 1 else f"{self.threads} threads"
        return f"ranks={self.count} (a process with {threads} each, over gloo)"

    def tell(self, method: str, *arguments: Any) -> None:
        """Send a command to every other rank; see Follower. Raise RankLost if one is gone."""
        with self.in_step():
            for rank in range(1, self.count):
                self._send(rank, method, *arguments)

    def answers(self, seconds: float | None = None) -> list[Any]:
        """Wait for an answer of every other rank, and return them in order.

        Raise RankLost if one is gone or fails, or takes longer than `seconds` (None: ANSWER_SECONDS).
        """
        found = []
        for rank, answers in enumerate(self._answers, 1):
            with self._at_most(seconds or ANSWER_SECONDS, f"rank {rank} of {self.count} does not answer"):
                found.append(answers.get())
        self._raise_failure()
        return found

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Wrap what all ranks do at the same time.

        An exception, Ctrl-C included, ends all ranks, since they may have stopped at different places. Raise RankLost
        if another rank was the reason, or does not reach a collective.
        """
        try:
            yield
        except BaseException as error:
            if isinstance(error, RuntimeError):  # a collective notices an ended process before its `_listen` does
                self._failed.wait(NOTICING_SECONDS)
            lost = self.failure is not None or isinstance(error, RuntimeError)
            self._fail(f"rank 0 could not end its step: {error!r}")
            # An InvalidInput is about the arguments. All ranks raise it, and another rank may be the first.
            if lost and isinstance(error, Exception) and not isinstance(error, (InvalidInput, RankLost)):
                raise RankLost(self.failure) from error
            raise
        self._raise_failure()

    def close(self) -> None:
        """End all ranks. Calling it again is harmless."""
        atexit.unregister(self.close)
        if self._ending:
            return
        self._ending = True
        orderly = self.failure is None and dist.is_initialized()
        for process in self._followers:
            with suppress(OSError):
                process.stdin.close()
            if not orderly:
                process.kill()
        if dist.is_initialized():
            forget_recordings()
            if not orderly and self.device.type == "cuda":
                dist.group.WORLD.abort()  # Otherwise destroying the group waits for ranks that have ended.
            dist.destroy_process_group()
        for process in self._followers:
            try:
                process.wait(LEAVING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        torch.set_num_threads(self._threads_before)

    def _device_of(self, rank: int) -> torch.device:
        return torch.device("cuda", rank) if self.device.type == "cuda" else self.device

    def _start(self, rank: int) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(self.threads))
        process = subprocess.Popen(
            [sys.executable, "-c", FOLLOW],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | threads,
            start_new_session=True,  # Then Ctrl-C reaches only rank 0, which ends the others.
        )
        self._followers.append(process)
        self._answers.append(SimpleQueue())
        arguments = (rank, process, self._answers[-1])
        threading.Thread(target=self._listen, args=arguments, name=f"rank {rank}", daemon=True).start()

    def _send(self, rank: int, method: str, *arguments: Any) -> None:
        self._raise_failure()
        pipe = self._followers[rank - 1].stdin
        try:
            with self._at_most(ANSWER_SECONDS, f"rank {rank} of {self.count} does not read its commands"):
                pickle.dump((method, arguments), pipe)
                pipe.flush()
        except OSError as error:
            self._failed.wait(NOTICING_SECONDS)
            self._fail(f"rank {rank} no longer reads its commands ({error})")
            raise RankLost(self.failure) from error

    def _listen(self, rank: int, process: subprocess.Popen, answers: SimpleQueue) -> None:
        """On a thread for each other rank: queue its answers, and notice its end, whatever rank 0 is doing."""
        with process.stdout, suppress(EOFError, OSError, pickle.UnpicklingError):
            while not isinstance(answer := pickle.load(process.stdout), Exception):
                answers.put(answer)
            self._fail(f"rank {rank} of {self.count} failed: {answer}")
        with suppress(subprocess.TimeoutExpired):
            process.wait(LEAVING_SECONDS)
        self._fail(f"rank {rank} of {self.count} has ended (exit status {process.returncode})")
        answers.put(None)  # wakes `answers`

    @contextmanager
    def _at_most(self, seconds: float, otherwise: str) -> Iterator[None]:
        """Bound a wait for another rank: when time is up, `_watch` ends all ranks, which wakes rank 0."""
        self._late = time.monotonic() + seconds, f"{otherwise} within {seconds:.0f} s"
        try:
            yield
        finally:
            self._late = None

    def _watch(self) -> None:
        """On a thread: end all ranks if one of them is too late."""
        while not (self._failed.wait(1.0) or self._ending):
            if (late := self._late) and time.monotonic() > late[0]:
                self._fail(late[1])

    def _fail(self, reason: str) -> None:
        """Record the first failure, since it causes all later ones. End all ranks, and with them the wait of rank 0."""
        with self._lock:
            if self._ending or self.failure is not None:
                return
            self.failure = reason
        self._failed.set()
        for process in self._followers:
            process.kill()
        if self.device.type == "cuda" and dist.is_initialized():
            forget_recordings()
            dist.group.WORLD.abort()  # gloo notices an ended connection by itself; a kernel of NCCL does not

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise RankLost(self.failure)
        if self._ending:
            raise RankLost("the ranks have been ended")


def choose_place(
    count: int, device: str | torch.device, dtype: str | torch.dtype
) -> tuple[torch.device, torch.dtype, int]:
    """Return device, dtype and threads per rank for `count` ranks. Raise InvalidInput if none can run here."""
    if count < 2:
        raise InvalidInput(f"tensor parallelism needs at least 2 ranks, not {count}")
    device, dtype, _ = choose_device(device, dtype)
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and device.index is not None:
        raise InvalidInput(f"{count} ranks use cuda:0 to cuda:{count - 1}: give the device as cuda, not as {device}")
    if device.type == "cuda" and gpus < count:
        raise InvalidInput(
            f"{count} ranks need a GPU each, and torch sees {counted(gpus, 'CUDA device')}: use fewer ranks"
        )
    # With more threads than cores, threads wait for each other (common/process.py), and every rank for the slowest.
    return device, dtype, max(1, torch.get_num_threads() // count)


def open_store() -> dist.TCPStore:
    """Open the store where all ranks meet, on loopback: a TCPStore's own socket would listen on all addresses."""
    listening = socket.create_server(("127.0.0.1", 0))
    port, options = listening.getsockname()[1], {"is_master": True, "wait_for_workers": False}
    return dist.TCPStore("127.0.0.1", port, **options, master_listen_fd=listening.detach())  # the store closes it


def join_group(store: dist.Store, shard: Shard, device: torch.device) -> None:
    """Join the process group; return when all ranks have called this."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=shard.rank,
        world_size=shard.ranks,
        timeout=timedelta(seconds=COLLECTIVE_SECONDS),
        device_id=device if device.type == "cuda" else None,
    )


def use_threads(count: int) -> None:
    """Let the calling thread compute with this many threads of torch, and of numba if it is loaded."""
    torch.set_num_threads(count)
    if numba := sys.modules.get("numba"):
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
