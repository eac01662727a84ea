"""NEW in 08: the stage's Engine: which workers there are, where they run, and with which options."""

from dataclasses import replace
from functools import partial
from typing import Any

from common.acceleration.accelerate import make_engine
from common.errors import InvalidInput, counted
from common.kv_tiers import NO_TIERS, TierOptions
from common.loader import Loaded
from common.loader.draft import load_draft_model
from common.memory import kv_bytes_left
from common.policies import FIRST_COME, Scheduling

from .engine import WorkerEngine
from .fleet import LocalFleet
from .router import Router
from .speculation import MAX_DRAFT_TOKENS
from .worker import HEARTBEAT_SECONDS


class Engine(Router):
    """The engine is a router in front of workers, which run a WorkerEngine each.

    replicas: the number of workers that do the whole job; 0: `prefill` and `decode` workers instead. workers: "local"
    for workers in this process, one after the other; "ray" for a process each, on this machine or on the cluster at
    ray_address. hang_seconds: a silent worker is ended and replaced. wait_seconds: how long requests wait while no
    worker is up. device, dtype, load_format: for workers that load the model themselves; None: as `loaded` has it. The
    others are options of WorkerEngine.
    """

    def __init__(
        self,
        loaded: Loaded,
        replicas: int = 0,
        prefill: int = 1,
        decode: int = 1,
        workers: str = "local",
        ray_address: str | None = None,
        hang_seconds: float = 60.0,
        wait_seconds: float = 60.0,
        max_running: int = 64,
        token_budget: int = 256,
        kv_memory: int | str | None = None,
        page_size: int = 16,
        attention: str = "auto",
        draft: str = "auto",
        num_draft_tokens: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        load_format: str = "auto",
        graphs: bool | None = None,
        price: Any = None,  # a ChunkPrice, which the workers share
        scheduling: Scheduling = FIRST_COME,
        tiers: TierOptions = NO_TIERS,  # each worker has its own memory, and all have one folder
        loras: Any = None,  # folders of adapters, by name (common/lora.py)
    ):
        if replicas < 0 or prefill < 1 or decode < 1:
            given = f"{replicas} replicas, {prefill} for prefill, {decode} for decode"
            raise InvalidInput(f"there must be replicas, or a worker of either kind, not {given}")
        if replicas and (prefill, decode) != (1, 1):
            raise InvalidInput("replicas do the whole job: leave out --prefill and --decode")
        if hang_seconds <= HEARTBEAT_SECONDS:
            often = f"an idle worker reports every {HEARTBEAT_SECONDS:g} s"
            raise InvalidInput(f"hang_seconds is {hang_seconds:g}, and {often}: give at least 2")
        if kv_memory is None and loaded.device.type == "cuda" and workers == "local":
            scored, count = max_running * (1 + MAX_DRAFT_TOKENS), replicas or prefill + decode
            load_draft_model(draft, loaded)  # The workers share its weights, but each has its own graphs.
            with_graphs = replace(loaded, reserved_bytes=count * loaded.reserved_bytes)
            kv_memory = kv_bytes_left(with_graphs, token_budget, scored, drawn=scored) // count
        options = {"max_running": max_running, "token_budget": token_budget, "kv_memory": kv_memory}
        options |= {"page_size": page_size, "attention": attention, "draft": draft, "graphs": graphs, "price": price}
        options |= {"num_draft_tokens": num_draft_tokens, "tiers": tiers, "scheduling": scheduling, "loras": loras}
        # A prefill worker samples one token and drafts none. Its pieces are shorter, since short prompts wait for them.
        for_prefill = {"num_draft_tokens": 0, "token_budget": max(max_running, token_budget // 2)}
        roles = ["replica"] * replicas or ["prefill"] * prefill + ["decode"] * decode
        each = [options | (for_prefill if role == "prefill" else {}) for role in roles]
        if workers == "local":
            fleet = LocalFleet([partial(make_engine, WorkerEngine, loaded, **one) for one in each])
        elif workers == "ray":
            try:  # Imported only here: local workers need no Ray.
                from .ray_fleet import RayFleet
            except ModuleNotFoundError as error:
                raise InvalidInput(f"workers in their own processes need Ray, and {error}: pip install ray") from error
            model = {
                "name_or_path": None if loaded.name == "bundled" else loaded.name,
                "device": device or loaded.device.type,
                "dtype": dtype or str(loaded.dtype).removeprefix("torch."),
                "load_format": load_format,
                "kv_dtype": "int8" if loaded.config.kv_int8 else "auto",
            }
            fleet = RayFleet(model, each, ray_address, hang_seconds)
        else:
            raise InvalidInput(f"workers must be 'local' or 'ray', not {workers!r}")
        try:
            super().__init__(loaded, fleet, roles, wait_seconds)
        except BaseException:
            fleet.close()
            raise
        hello = self.handles[0].hello
        what = f"{prefill} prefill and {counted(decode, 'decode worker')} ({fleet.description}; {hello.transport})"
        if replicas:
            what = f"{replicas} replicas ({fleet.description})"
        self.startup_notes = f"{what}; {hello.startup_notes}"
