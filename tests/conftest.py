"""Fixtures of the whole suite: the bundled model, the reference, and engines that are checked for leftovers."""

import gc
import inspect
import os
import random
import re
import signal
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

gc.disable()  # until all tests are collected: imported objects stay, and each collection would visit them again

# One thread for each process: beside other processes, OpenMP's threads wait for each other longer than they compute.
for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # before torch and numba read them

# Hundreds of processes import torch, Ray or the course, and each would compile all of it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Each call of httpx would read all certificates, which takes 20 ms.
ssl.create_default_context = cache(ssl.create_default_context)

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton: kernels then run in Python

from filelock import FileLock
from hypothesis import Phase, settings

from common.acceleration.accelerate import overlapped
from common.checkpoints.corpus import chat, document
from common.engine import BaseEngine
from common.loader import Loaded, load_model
from common.process import freeze_loaded_objects
from common.reference import Reference
from common.request import Request
from common.sampling import SamplingParams
from common.stages import load_engine, stage_folders
from common.trace import Trace
from tests.helpers.engine_options import MAX_TOKENS
from tests.helpers.graph_stand_in import graphed
from tests.helpers.wrong_token import wrong_token

# For runs that only ask whether a test fails: to find its smallest example takes minutes.
settings.register_profile("first_failure", phases=[Phase.explicit, Phase.reuse, Phase.generate])

WITH_A_LOOP_AROUND = "06_prefix_cache+overlap"
PROMPT_COUNT = 13
PLAIN = {int, float, str, bool, type(None)}  # They hold no objects, and are most of what an engine holds.


def pytest_addoption(parser):
    parser.addoption("--engine", metavar="PATH", help="run the contract suite on the Engine in this folder only")
    parser.addoption("--fuzz", type=int, default=150, help="request bodies that the fuzz tries (default: 150)")
    parser.addoption("--device", default="cpu", help="where the contract suite runs (default: cpu)")


def pytest_configure(config):
    """Let the folder of --engine stand for the stage of its name."""
    if (engine := config.getoption("--engine")) and Path(engine).name in [folder.name for folder in stage_folders()]:
        os.environ["COURSE_STAGE"] = str(Path(engine).resolve())  # before a test's module imports the stage


def pytest_generate_tests(metafunc):
    """Run each test that asks for `engine_class` once for each stage, or for the folder given with --engine."""
    if "engine_class" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--engine")
        stages = [chosen] if chosen else [*(folder.name for folder in stage_folders()), WITH_A_LOOP_AROUND]
        if metafunc.config.getoption("--device") == "cpu":  # with draft tokens whether they pay here or not
            stages += [f"{stage}+draft" for stage in stages if re.search(r"07_\w+$", stage)]
        metafunc.parametrize("engine_class", stages, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Leave out what a stage does not claim, skip what needs a GPU, and group the rest for several processes.

    With --engine, refuse tests of anything else: they would pass, and say nothing about that folder.
    """
    engine = config.getoption("--engine")
    if engine and (others := sorted({item.path.name for item in items if not is_about(item, Path(engine).resolve())})):
        raise pytest.UsageError(f"--engine {engine} runs the contract, and its stage's tests; not {', '.join(others)}")
    out = [item for item in items if not is_claimed(item)]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    if config.getoption("loadgroup", False):  # of pytest-xdist
        groups = {item: group_of(item) for item in items}
        sizes = Counter(groups.values())
        for item, group in groups.items():
            item.add_marker(pytest.mark.xdist_group(group))
        # A file of few tests runs whole programs. Those of many short ones come last, and level the processes out,
        # but for three that have a test of a minute as well.
        first = ("ray", "milestones", "test_faults", "test_gguf", "test_sampling")
        items.sort(key=lambda item: (not groups[item].startswith(first), sizes[groups[item]], groups[item]))


@pytest.hookimpl(tryfirst=True)  # pytest stops at the first hook that returns a value, so this one comes before.
def pytest_runtestloop():
    gc.enable()


def group_of(item) -> str:
    """Return the group of a test, which one process runs in order: its file, and of the contract the stage.

    Tests under Ray are two groups, which come first, since both wait for most of the time. Those of one start workers
    that compute, with deadlines that they would miss beside each other, or share their Ray; the others start and end
    one. All that have a fork server load the models are one group, and take a minute too.
    """
    if item.get_closest_marker("ray"):
        together = item.path.parent.name == "stages" or "two_nodes" in item.fixturenames
        return "ray, workers" if together else "ray, others"
    if "loaded_once" in item.fixturenames:
        return "milestones"
    if "engine_class" in item.fixturenames:
        return f"contract:{Path(item.callspec.params['engine_class']).name}"
    return item.path.stem


def is_about(item, folder: Path) -> bool:
    """Return whether a test runs the engine in this folder: as the contract does, or as a test of its stage."""
    is_its_stage = os.environ.get("COURSE_STAGE") == str(folder) and f"_{folder.name[:2]}_" in item.path.name
    return is_its_stage or "engine_class" in getattr(item, "fixturenames", ())


def is_claimed(item) -> bool:
    """Return whether a test marked `claim(5)` is for a stage from 05 on, by the number in its folder's name."""
    if (claim := item.get_closest_marker("claim")) is None:
        return True
    folder = Path(item.callspec.params["engine_class"]).name
    if (number := re.search(r"\d+", folder)) is None:
        raise pytest.UsageError(f"{folder} has no number, so it is not clear what it claims: name it such as my_05")
    return int(number[0]) >= claim.args[0]


def pytest_assertrepr_compare(op, left, right):
    """In the contract, say in words which token is the first wrong one."""
    if op == "==" and "test_contract" in os.environ.get("PYTEST_CURRENT_TEST", ""):
        return wrong_token(left, right)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Yield a function that interrupts this process, even one in the background, which would ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def loaded(request) -> Loaded:
    """The bundled checkpoint in float32."""
    loaded = load_model(dtype="float32", device=request.config.getoption("--device"))
    freeze_loaded_objects()  # Otherwise each garbage collection around an engine takes 0.2 s.
    return loaded


@pytest.fixture(scope="session")
def draft() -> Loaded:
    """The small model that drafts for the bundled one, and that answers by schemas: any model keeps them."""
    return load_model("draft", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def expect(loaded) -> Callable[..., Request]:
    """A function that answers with stage 02's engine, for tests of servers: expect(prompt, **params) -> request."""
    engine = load_engine("02")(loaded)
    return lambda prompt, **params: engine.generate([prompt], SamplingParams(**params))[0]


class SharedReference(Reference):
    """Computes each answer once for all processes of this run, and loads its model only for that."""

    def __init__(self, device: torch.device, folder: Path):
        self.device, self.folder = device, folder

    @cached_property
    def model(self) -> torch.nn.Module:
        model = Reference(device=self.device).model
        freeze_loaded_objects()
        return model

    def generate(self, prompt, max_tokens, **options):
        return self._once(super().generate, prompt, max_tokens, **options)

    def next_logits(self, token_ids):
        return self._once(super().next_logits, token_ids)

    def _once(self, function: Callable, *arguments, **options) -> Any:
        asked = repr((function.__name__, arguments, options))
        path = self.folder / f"{sha256(asked.encode()).hexdigest()}.pt"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                torch.save(function(*arguments, **options), path)
        return torch.load(path)


@pytest.fixture(scope="session")
def reference(loaded, tmp_path_factory) -> Reference:
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # its own folder lies in that of the run
        folder = folder.parent
    folder = folder / "reference"
    folder.mkdir(exist_ok=True)
    return SharedReference(loaded.device, folder)


@pytest.fixture(scope="session")
def prompts(loaded) -> list[list[int]]:
    """Prompts of 1 to about 300 tokens: documents cut anywhere, and questions in the chat template."""
    rng = random.Random("contract")
    prompts = []
    for index in range(PROMPT_COUNT):
        token_ids = loaded.tokenizer(document(index, "contract"))["input_ids"]
        prompts.append(token_ids[: rng.randint(1, min(len(token_ids), 300))])
    questions = ["What is 2+2?", "Copy this text: 🐢 café Łódź", "Tell me a story about a fox that lasts two days."]
    chats = [chat(question) + "<|im_start|>assistant\n" for question in questions]
    return prompts + [loaded.tokenizer(text)["input_ids"] for text in chats]


@pytest.fixture(scope="session")
def expected(reference, prompts) -> list[list[int]]:
    """The greedy output tokens of transformers for each prompt, at most MAX_TOKENS."""
    return [reference.generate(prompt, MAX_TOKENS) for prompt in prompts]


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[str]:
    """The address of a Ray of two nodes on this machine, which claim cores and GPUs that it does not have."""
    pytest.importorskip("ray", reason="needs the package ray")
    from ray._private.node import Node
    from ray.cluster_utils import Cluster

    from common.distributed.joining import NOT_STARTED, OBJECT_STORE_BYTES, read_authentication_settings

    # As a Ray of our own, but without a token.
    started = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
    with patch.dict(os.environ, started), patch.multiple(Node, **NOT_STARTED):
        read_authentication_settings()
        cluster = Cluster()
        for cores in (3, 2):  # the first one is the head
            options = {"num_cpus": cores, "num_gpus": 1, "include_dashboard": False}
            cluster.add_node(object_store_memory=OBJECT_STORE_BYTES, **options)
        cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="session")
def engine_class(request) -> Callable[[Loaded], BaseEngine]:
    stage, *around = request.param.split("+")
    if "draft" in around:
        return partial(load_engine(stage), num_draft_tokens=4)
    if "graphs" in around:
        return graphed(load_engine(stage), overlap="overlap" in around)
    return overlapped(load_engine(stage)) if "overlap" in around else load_engine(stage)


@pytest.fixture
def make_engine(engine_class, loaded):
    """Make engines; after the test, assert that each of them holds nothing any more."""
    made = []  # engines, and the bytes of each when it was new
    # On a GPU an engine by default takes all the memory there is, and some tests have two engines.
    takes_all = loaded.device.type == "cuda" and "kv_memory" in inspect.signature(engine_class).parameters
    memory = {"kv_memory": "1G"} if takes_all else {}

    def make(context_length: int | None = None) -> BaseEngine:
        config = replace(loaded.config, context_length=context_length or loaded.config.context_length)
        engine = engine_class(replace(loaded, config=config), **memory)
        made.append((engine, tensor_bytes(engine)))
        return engine

    yield make
    for engine, bytes_when_new in made:
        assert not engine.has_unfinished, f"left unfinished: {list(engine.requests)}"
        engine.check()
        stats = engine.stats()
        assert stats["unfinished"] == 0 and stats["kv_tokens_used"] == 0, stats
        assert not list(reachable(engine, Request)), "the engine still holds requests that have ended"
        assert tensor_bytes(engine) == bytes_when_new, "the engine still holds tensors of requests that have ended"


@pytest.fixture
def engine(make_engine) -> BaseEngine:
    return make_engine()


def tensor_bytes(engine: BaseEngine) -> int:
    storages = [tensor.untyped_storage() for tensor in reachable(engine, torch.Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def reachable(engine: BaseEngine, kind: type):
    """Every object of `kind` that the engine holds, through any attributes and containers, the model left out."""
    seen, todo = {id(engine.model), id(engine.tokenizer)}, [engine]
    while todo:
        value = todo.pop()
        if type(value) in PLAIN or id(value) in seen or isinstance(value, (Trace, type)):
            continue
        if callable(value) and not hasattr(value, "__self__"):
            continue
        seen.add(id(value))
        if isinstance(value, kind):
            yield value
        elif isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            todo += value
        elif hasattr(value, "__dict__"):
            todo += vars(value).values()
