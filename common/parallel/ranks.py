"""The processes of tensor parallelism: how they start, what they are told, and how they end together.

Rank 0 is the caller's process. It starts the others, which load their own parts of the model (shard.py) and then do
what they are told (engine.py). The tensors that meet inside a layer go through torch.distributed: over NCCL
on CUDA, over gloo on the CPU. Commands go through a pipe to each process and not through a collective: a rank may wait
for the next one for days, which a collective would take for a failure; and the pipe's end tells it that rank 0 is gone,
however that came about.

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from ..loader import load_model
from ..loader.device import choose_device
from ..stages import ROOT
from .shard import Shard

MEETING_SECONDS = 60.0  # a rank that keeps the others waiting for so long in a collective hangs
NOTICING_SECONDS = 2.0  # from the end of a connection to the news of its reason
LEAVING_SECONDS = 5.0  # for a rank to end by itself
FOLLOW = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from common.parallel.engine import follow; follow()"


class RankLost(ConnectionError):
    """A rank has ended or failed. Nothing more can be computed, and all others have been ended too."""


class Ranks:
    """`count` processes that share a model, this one among them; arguments otherwise as for `load_model`.

    On CUDA rank r has cuda:r; on a CPU each has its share of the cores. ValueError for what cannot be had. There is one
    at a time in a process. It ends with `close`, or with the process, and after a RankLost.
    """

    def __init__(
        self,
        count: int,
        name_or_path: str | os.PathLike | None = None,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        load_format: str = "auto",
    ):
        if dist.is_initialized():
            raise ValueError("this process shares a model with other ranks already: end that first")
        self.count = count
        self.device, self.dtype, self.threads = place(count, device, dtype)
        self.failure: str | None = None
        self._known = threading.Event()  # that there is a failure
        self._ending = False
        self._lock = threading.Lock()
        self._threads_before = torch.get_num_threads()
        self._followers: list[subprocess.Popen] = []
        self._answers: list[SimpleQueue] = []
        atexit.register(self.close)
        try:
            store = open_store()
            model = {"name_or_path": name_or_path, "dtype": self.dtype, "load_format": load_format}
            for rank in range(1, count):
                self._start(rank)
                self._send(rank, "join", rank, count, store.port, self._device_of(rank), model, self.threads)
            use_threads(self.threads)  # from here on: the others load at the same time
            self.loaded = load_model(**model, device=self._device_of(0), shard=Shard(0, count))
            self.answers()  # all have loaded, and nobody waits for long when they meet
            meet(store, self.loaded.shard, self.loaded.device)
        except BaseException:
            self.close()
            raise

    @property
    def why(self) -> str:
        if self.device.type == "cuda":
            return f"ranks={self.count} (cuda:0 to cuda:{self.count - 1}, over NCCL)"
        threads = "a thread" if self.threads == 1 else f"{self.threads} threads"
        return f"ranks={self.count} (a process with {threads} each, over gloo)"

    def tell(self, method: str, *arguments: Any) -> None:
        """Has every other rank do this; see Follower. RankLost if one is gone."""
        with self.in_step():
            for rank in range(1, self.count):
                self._send(rank, method, *arguments)

    def answers(self) -> list[Any]:
        """What the others answer, in the order of ranks, once all have. RankLost if one is gone, or fails meanwhile."""
        found = [answers.get() for answers in self._answers]
        self._raise_failure()
        return found

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Around what all ranks do at the same time. An exception ends them, Ctrl-C too: nobody knows how far they are.

        RankLost if another rank was the reason, or does not come to a collective.
        """
        try:
            yield
        except BaseException as error:
            if isinstance(error, RuntimeError):  # a collective notices that a process has ended before its watcher does
                self._known.wait(NOTICING_SECONDS)
            lost = self.failure is not None or isinstance(error, RuntimeError)
            self._fail(f"rank 0 could not end its step: {error!r}")
            # A ValueError says what is wrong with what was asked for. All ranks raise it, and another may be sooner.
            if lost and isinstance(error, Exception) and not isinstance(error, (ValueError, RankLost)):
                raise RankLost(self.failure) from error
            raise
        self._raise_failure()

    def close(self) -> None:
        """Ends all ranks. Once more is harmless."""
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
            if not orderly and self.device.type == "cuda":
                dist.group.WORLD.abort()  # or it would wait for those who do not come
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
            start_new_session=True,  # Ctrl-C is for rank 0, which ends the others
        )
        self._followers.append(process)
        self._answers.append(SimpleQueue())
        arguments = (rank, process, self._answers[-1])
        threading.Thread(target=self._listen, args=arguments, name=f"rank {rank}", daemon=True).start()

    def _send(self, rank: int, method: str, *arguments: Any) -> None:
        self._raise_failure()
        pipe = self._followers[rank - 1].stdin
        try:
            pickle.dump((method, arguments), pipe)
            pipe.flush()
        except OSError as error:
            self._known.wait(NOTICING_SECONDS)
            self._fail(f"rank {rank} does not listen any more ({error})")
            raise RankLost(self.failure) from error

    def _listen(self, rank: int, process: subprocess.Popen, answers: SimpleQueue) -> None:
        """On a thread for each of the others: takes what it answers, and notices its end, whatever rank 0 does."""
        with process.stdout, suppress(EOFError, OSError, pickle.UnpicklingError):
            while not isinstance(answer := pickle.load(process.stdout), Exception):
                answers.put(answer)
            self._fail(f"rank {rank} of {self.count} failed: {answer}")
        with suppress(subprocess.TimeoutExpired):
            process.wait(LEAVING_SECONDS)
        self._fail(f"rank {rank} of {self.count} has ended (exit status {process.returncode})")
        answers.put(None)  # whoever waits for an answer

    def _fail(self, reason: str) -> None:
        """The first failure is the reason of all others. It ends all ranks, and what rank 0 waits for."""
        with self._lock:
            if self._ending or self.failure is not None:
                return
            self.failure = reason
        self._known.set()
        for process in self._followers:
            process.kill()
        if self.device.type == "cuda" and dist.is_initialized():
            dist.group.WORLD.abort()  # gloo notices by itself that a connection has ended; a kernel of NCCL does not

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise RankLost(self.failure)
        if self._ending:
            raise RankLost("the ranks have been ended")


def place(count: int, device: str | torch.device, dtype: str | torch.dtype) -> tuple[torch.device, torch.dtype, int]:
    """Where that many ranks run, in what type, and with how many threads each. ValueError if they cannot."""
    if count < 2:
        raise ValueError(f"a model is shared by 2 ranks or more, not {count}")
    device, dtype, _ = choose_device(device, dtype)
    gpus = torch.cuda.device_count()
    if device.type not in ("cuda", "cpu"):
        raise ValueError(f"ranks can share a model on cuda and on the cpu, not on {device.type}")
    if device.type == "cuda" and device.index is not None:
        raise ValueError(f"{count} ranks take cuda:0 to cuda:{count - 1}: give the device as cuda, not as {device}")
    if device.type == "cuda" and gpus < count:
        raise ValueError(
            f"each of {count} ranks needs a GPU of its own, and the CUDA devices that torch sees are {gpus}"
        )
    # More threads than cores would wait for each other (common/process.py), and every rank for the slowest.
    return device, dtype, max(1, torch.get_num_threads() // count)


def open_store() -> dist.TCPStore:
    """Open the store where all ranks meet, for this machine alone. By itself a TCPStore listens on all addresses."""
    listening = socket.create_server(("127.0.0.1", 0))
    port, options = listening.getsockname()[1], {"is_master": True, "wait_for_workers": False}
    return dist.TCPStore("127.0.0.1", port, **options, master_listen_fd=listening.detach())  # which closes it


def meet(store: dist.Store, shard: Shard, device: torch.device) -> None:
    """All ranks call it, and from then on they can reach each other."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=shard.rank,
        world_size=shard.ranks,
        timeout=timedelta(seconds=MEETING_SECONDS),
        device_id=device if device.type == "cuda" else None,
    )


def use_threads(count: int) -> None:
    """For what the calling thread computes from now on: torch's threads, and numba's where it is used."""
    torch.set_num_threads(count)
    if numba := sys.modules.get("numba"):
        numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
