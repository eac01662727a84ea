"""Adapters (LoRA; Hu et al., 2021): one model that answers in many ways, in the same batch.

An adapter adds to some matrices of a model the product of two narrow ones, of rank r:

    y = W x + scale * B (A x)        W: [out, in]    A: [r, in]    B: [out, r]    scale: alpha / r

W belongs to all requests, so all rows of a step share its product, nearly all of the work. For the narrow products the
rows are sorted by adapter, and one call multiplies each group of rows with its own matrix (SGMV in Punica, Chen et al.,
2023; S-LoRA, Sheng et al., 2023):

    adapters of a step's rows     -  a  b  a  -  b
    order                         1  3 | 2  5
    x[order] times                A_a  | A_b

No stage knows of this. `add_adapters` gives an engine a model that adds them, and before each step the rows that have
one. A step without any runs the model as it was, with its kernels for few tokens. On a GPU both have CUDA graphs.

Folders are PEFT's; a field that would change an answer, and is not implemented, is refused by name. Production engines
add: adapters that wait in the host's memory until a request asks for them, ranks of tensor parallelism, embeddings and
output layers.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import accumulate, chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .acceleration.graphs import GraphedModel
from .engine import AroundModel, BaseEngine
from .errors import InvalidInput, counted, first_sentence, require, shortened
from .fused import NO_BLOCKS
from .loader import Loaded
from .loader.config import read_json
from .loader.weights import checkpoint_names
from .model import Attend, ModelConfig, Transformer
from .request import SaltedTokens
from .transfers import current, to_device

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK, MAX_NAME = 64, 128
ALIGNED = 8  # grouped products on a GPU read rows of a multiple of 16 bytes
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MODULES = {"qkv": TARGETS[:3], "output": TARGETS[3:4], "gate_up": TARGETS[4:6], "down": TARGETS[6:]}  # of a checkpoint
# Fields of adapter_config.json that are read here, or say how it was trained. Any other must be empty.
KNOWN = {
    "peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias", "auto_mapping", "base_model_name_or_path",
    "eva_config", "exclude_modules", "inference_mode", "init_lora_weights", "lora_dropout", "megatron_core",
    "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
}  # fmt: skip
# How training starts A and B. Other starts change the model's weights, too.
STARTS = (True, False, "gaussian", "eva", "orthogonal")


class Adapter(NamedTuple):
    """An adapter.

    weights: for each layer that it changes, A `[r, in]` and scale * B `[r, out]`, stacked over the modules that share
    the layer's matrix; and `[r, 2]`, int64, where the numbers of each row of B begin and end, with zeros on both sides.
    All on the host.
    """

    name: str
    key: str  # the name and a hash of the weights, for requests and their pages
    folder: Path
    weights: dict[str, tuple[Tensor, Tensor, Tensor]]


# ---- PEFT's format ----


def read_adapter(name: str, folder: Path, model: Loaded | BaseEngine) -> Adapter:
    """Read an adapter for a model. Raise InvalidInput, one sentence with the field or the tensor at fault."""
    if not (0 < len(name) <= MAX_NAME and name.isprintable()):
        raise InvalidInput(f"an adapter's name has 1 to {MAX_NAME} printable characters, not {shortened(name)}")
    try:
        rank, scale, targets = read_settings(folder / CONFIG)
        tensors = read_tensors(folder / WEIGHTS, rank, targets, model.config)
    except InvalidInput:
        raise
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise InvalidInput(f"the adapter {shortened(name)} cannot be read: {first_sentence(error)}") from error
    found = blake2b(repr(scale).encode(), digest_size=16)
    for tensor, part in tensors.items():
        found.update(repr((tensor, part.shape)).encode())
        found.update(part.view(torch.uint8).numpy())
    sizes, weights = widths(model.config), {}
    for path, group in groupby(targeted(model.config, targets), itemgetter(0)):
        parts = [*group]
        out = sum(sizes[module][1] for module in MODULES[path.rpartition(".")[2]])
        lora_a = torch.cat([tensors[tensor_name(module, "A")] for _, module, _ in parts])
        lora_b, spans = torch.zeros(len(lora_a), out), torch.zeros(len(lora_a), 2, dtype=torch.int64)
        for number, (_, module, rows) in enumerate(parts):
            own = slice(rank * number, rank * (number + 1))
            lora_b[own, rows] = scale * tensors[tensor_name(module, "B")].T
            spans[own] = torch.tensor(rows.indices(out)[:2])
        weights[path] = lora_a.to(model.dtype), lora_b.to(model.dtype), spans
        fits = all(bool(part.isfinite().all()) for part in weights[path][:2])
        require(
            folder / WEIGHTS, fits, path, "not finite", f"numbers that fit into {model.dtype}, also times the scale"
        )
    return Adapter(name, f"{name}@{found.hexdigest()}", folder, weights)


def read_settings(file: Path) -> tuple[int, float, list[str]]:
    """Return the rank, the scale and the target modules of an adapter_config.json; refuse all else by its field."""
    check = partial(require, file)
    given = {"bias": "none", "use_rslora": False, "init_lora_weights": True} | read_json(file)
    rank, alpha, targets = (given.get(field) for field in ("r", "lora_alpha", "target_modules"))
    for field, value in given.items():
        check(field in KNOWN or not value, field, value, "an adapter without it")
    check(given.get("peft_type") == "LORA", "peft_type", given.get("peft_type"), "LORA")
    check(given["bias"] == "none", "bias", given["bias"], "none")
    start = given["init_lora_weights"]
    check(start in STARTS, "init_lora_weights", start, "a start that leaves the model as it is")
    check(type(rank) is int and 1 <= rank <= MAX_RANK, "r", rank, f"a rank of 1 to {MAX_RANK}")
    check(type(alpha) in (int, float) and abs(alpha) < 1e6, "lora_alpha", alpha, "a number")
    check(given["use_rslora"] in (True, False), "use_rslora", given["use_rslora"], "true or false")
    fit = isinstance(targets, list) and targets and all(target in TARGETS for target in targets)
    check(fit, "target_modules", targets, f"a list of {', '.join(TARGETS)}")
    return rank, alpha / (math.sqrt(rank) if given["use_rslora"] else rank), targets


def read_tensors(file: Path, rank: int, targets: Sequence[str], config: ModelConfig) -> dict[str, Tensor]:
    """Return A `[r, in]` and B `[out, r]` of all target modules in all layers, by name, in float32."""
    sizes, shapes, tensors = widths(config), {}, {}
    for _, module, _ in targeted(config, targets):
        ins, outs = sizes[module.rpartition(".")[2]]
        shapes |= {tensor_name(module, "A"): [rank, ins], tensor_name(module, "B"): [outs, rank]}
    with safe_open(file, framework="pt") as opened:
        for name in sorted(shapes.keys() ^ {*opened.keys()}):
            belongs = "which the file lacks" if name in shapes else "which belongs to no target module of this model"
            raise InvalidInput(f"{file}: {belongs}: {shortened(name)}")
        for name, shape in shapes.items():
            stored = opened.get_slice(name)
            has, dtype = stored.get_shape(), stored.get_dtype()
            require(file, has == shape, f"shape of {name}", has, f"{shape}, as r and the model say")
            require(file, dtype in ("F32", "F16", "BF16"), f"type of {name}", dtype, "F32, F16 or BF16")
            tensors[name] = opened.get_tensor(name).float()
            require(file, bool(tensors[name].isfinite().all()), name, "not finite", "a tensor of finite numbers")
    return tensors


def widths(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return how many inputs and outputs each target module has."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    pairs = (hidden, q), (hidden, kv), (hidden, kv), (q, hidden), (hidden, inner), (hidden, inner), (inner, hidden)
    return dict(zip(TARGETS, pairs, strict=True))


def targeted(config: ModelConfig, targets: Sequence[str]) -> list[tuple[str, str, slice]]:
    """Return (layer, module of a checkpoint, outputs of the layer that are the module's) for each target module."""
    found = []
    for path, tensor, rows in checkpoint_names(config):
        module = tensor.removesuffix(".weight")  # a bias is no target
        if module.rpartition(".")[2] in targets:
            found.append((path.removesuffix(".weight"), module, rows))
    return found


def tensor_name(module: str, side: str) -> str:
    return f"base_model.model.{module}.lora_{side}.weight"


def write_adapter(folder: Path, modules: Mapping[str, tuple[Tensor, Tensor]], alpha: float, **fields: Any) -> None:
    """Write an adapter as PEFT does. modules: A `[r, in]` and B `[out, r]` by the name of a checkpoint's module."""
    folder.mkdir(parents=True, exist_ok=True)
    rank, targets = len(next(iter(modules.values()))[0]), sorted({name.rpartition(".")[2] for name in modules})
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "bias": "none"}
    (folder / CONFIG).write_text(json.dumps(settings | {"target_modules": targets} | fields, indent=1) + "\n")
    sides = {}
    for name, (lora_a, lora_b) in modules.items():
        sides |= {tensor_name(name, "A"): lora_a.contiguous(), tensor_name(name, "B"): lora_b.contiguous()}
    save_file(sides, folder / WEIGHTS)


def random_modules(
    config: ModelConfig, rank: int, seed: int, targets: Sequence[str] = TARGETS
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A and B for each module, for `write_adapter`: with an alpha of sqrt(rank), B (A x) is as large as x."""
    rng, sizes, modules = torch.Generator().manual_seed(seed), widths(config), {}
    for _, module, _ in targeted(config, targets):
        ins, outs = sizes[module.rpartition(".")[2]]
        modules[module] = torch.randn(rank, ins, generator=rng) / ins**0.5, torch.randn(outs, rank, generator=rng)
    return modules


# ---- One step ----


class StepRows:
    """Which rows of a step have which adapter, for the products of all layers.

    kernels: fused/numba_adapters.py or triton_adapters.py; None: grouped products. held: how many adapters there are.
    replayed: rows of the largest step that graphs run. Such steps use buffers, since a graph holds addresses.
    """

    def __init__(self, kernels: Any, held: int, replayed: int, device: torch.device):
        self.kernels, self.held, self.replayed, self.device = kernels, held, replayed, device
        self.order: Tensor | None = None  # rows that have an adapter, sorted by it; None: there are none
        self.ends: Tensor | None = None  # for grouped products: where the rows of each adapter end in `order`, int32
        self.tiles: Tensor | None = None  # for kernels: some rows with one adapter, `[tiles, 3]`, int64
        if replayed:
            places = torch.zeros(replayed + 3 * self.most_tiles(replayed), dtype=torch.int64, device=device)
            self.buffers = places[:replayed], places[replayed:].view(-1, 3)

    def lay(self, rows: Sequence[Sequence[int]], count: int) -> None:
        """Take a step of `count` rows. rows: the numbers of those of each adapter."""
        self.order, ends = to_device([*chain(*rows)], torch.int64, self.device), [*accumulate(map(len, rows))]
        if not self.kernels:
            self.ends = to_device(ends, torch.int32, self.device)
            return
        tiles, most = [], self.kernels.TILE
        for number, (end, own) in enumerate(zip(ends, rows, strict=True)):
            tiles += [(first, min(first + most, end), number) for first in range(end - len(own), end, most)]
        self.tiles = to_device(tiles, torch.int64, self.device)
        if count <= self.replayed:
            self.buffers[1].zero_()  # a tile from 0 to 0 has no rows
            for buffer, found in zip(self.buffers, (self.order, self.tiles), strict=True):
                buffer[: len(found)] = found
            self.order, self.tiles = self.buffers

    def most_tiles(self, count: int) -> int:
        """Return how many tiles a step of so many rows has at most."""
        return min(count, count // self.kernels.TILE + self.held)


class AdaptedLinear(nn.Module):
    """A layer with the adapters of the step's rows. weights: what `stacked` returns."""

    def __init__(self, product: Callable[[Tensor], Tensor], weights: tuple[Tensor, Tensor, Tensor], step: StepRows):
        super().__init__()
        self.product, self.weights, self.step = product, weights, step

    def forward(self, x: Tensor) -> Tensor:
        y, step = self.product(x), self.step
        if step.kernels:
            order, tiles = step.order[: len(x)], step.tiles[: step.most_tiles(len(x))]
            step.kernels.add_lora(x.contiguous(), y, *self.weights, order, tiles)
            return y
        lora_a, lora_b, _ = self.weights
        narrow = F.grouped_mm(x.index_select(0, step.order), lora_a.mT, offs=step.ends)  # [rows with an adapter, r]
        return y.index_add_(0, step.order, F.grouped_mm(narrow, lora_b, offs=step.ends))


class AdaptedModel(AroundModel):
    """A model whose rows may have adapters. To a stage it is its model; all other attributes are the model's own.

    model: what the engine runs, perhaps with graphs around it (acceleration/graphs.py). adapters: by name.
    """

    def __init__(self, model: Any, device: torch.device, adapters: dict[str, Adapter]):
        self.model, self.plain, self.device = model, model, device
        while not isinstance(self.plain, nn.Module):
            self.plain = self.plain.model
        self.kernels = None  # fused/numba_adapters.py or triton_adapters.py; without fused kernels: grouped products
        if kernels := getattr(self.plain, "kernels", None):
            self.kernels = import_module(kernels.__name__.replace("kernels", "adapters"))
        self.adapters = adapters
        self.hold(adapters.values())

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """As `Transformer`, for the rows that `plan` has laid out."""
        return (self.model if self.step.order is None else self.adapted)(token_ids, positions, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Transformer.logits`. Graphs only have the scores of their own passes."""
        return (self.model if self.step.order is None else self.adapted).logits(hidden)

    def plan(self, chunks: Sequence[Any]) -> None:
        """Find the adapter of each row of a step. chunks: what it runs, in the order of its rows."""
        rows: list[list[int]] = [[] for _ in self.numbers]
        start = 0
        for chunk in chunks:
            count = getattr(chunk, "num_tokens", len(chunk.token_ids))  # Stages 07 and 08 also count draft tokens.
            if (key := chunk.sequence.request.params.adapter) is not None:
                rows[self.numbers[key]] += range(start, start + count)
            start += count
        self.step.order = None
        if any(rows):
            self.step.lay(rows, start)

    def hold(self, adapters: Iterable[Adapter]) -> None:
        """Lay the weights of these adapters side by side: grouped products find them by number."""
        adapters, layers = list(adapters), {}
        graphs = self.model if self.kernels and isinstance(self.model, GraphedModel) else None
        step = StepRows(self.kernels, len(adapters), graphs.sizes[-1] if graphs else 0, self.device)
        for path in dict.fromkeys(chain(*(adapter.weights for adapter in adapters))):
            weights = stacked([one.weights.get(path) for one in adapters], self.device)
            layers[path] = AdaptedLinear(product_of(self.plain, self.plain.get_submodule(path)), weights, step)
        adapted = with_layers(self.plain, layers)
        self.compile_kernels(layer.weights for layer in layers.values())
        if graphs and layers:
            step.order, step.tiles = step.buffers
            with current(self.device):
                adapted = graphs.around(adapted)
            step.order = None
        # Set together, at the end: if memory runs out before, nothing has changed.
        self.adapted, self.step = adapted, step
        self.numbers = {adapter.key: number for number, adapter in enumerate(adapters)}

    def compile_kernels(self, weights: Iterable[tuple[Tensor, ...]]) -> None:
        """Run a row of zeros with one layer of each shape: kernels are compiled now, and not while requests wait."""
        if not self.kernels:
            return
        order, tile = (to_device(own, torch.int64, self.device) for own in ([0], [(0, 1, 0)]))
        with current(self.device):
            for lora_a, lora_b, spans in {(each[0].shape, each[1].shape): each for each in weights}.values():
                x, y = (each.new_zeros(1, each.shape[2]) for each in (lora_a, lora_b))
                for count in self.kernels.COUNTS:
                    self.kernels.add_lora(x, y, lora_a, lora_b, spans, order, tile.repeat(count, 1))

    def load(self, adapter: Adapter) -> None:
        """Take one more adapter. Raise InvalidInput if its name is taken."""
        if adapter.name in self.adapters:
            raise InvalidInput(f"there is an adapter {shortened(adapter.name)} already: unload it first")
        self.hold([*self.adapters.values(), adapter])
        self.adapters[adapter.name] = adapter

    def unload(self, name: str, requests: Mapping[str, Any]) -> None:
        """Forget an adapter. Raise InvalidInput if there is none of this name, or unfinished requests have it."""
        if name not in self.adapters:
            raise InvalidInput(f"there is no adapter {shortened(name)}")
        if users := sum(one.params.adapter == self.adapters[name].key for one in requests.values()):
            raise InvalidInput(
                f"the adapter {shortened(name)} has {counted(users, 'unfinished request')}: try again later"
            )
        self.hold(adapter for adapter in self.adapters.values() if adapter.name != name)
        del self.adapters[name]


def product_of(model: Transformer, layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the function that multiplies by a layer's weight as the model does: few tokens with their kernels."""
    kernels, most = getattr(model, "kernels", None), getattr(model, "most_few", 0)
    if not most:
        return layer if kernels is None else lambda x: kernels.apply_linear(layer, x)
    from .fused.few_tokens import FewScores  # needs numba

    few = FewScores(layer, model.norm.weight.dtype)

    def product(x: Tensor) -> Tensor:
        if len(x) > most:
            return layer(x)
        y = few(x).to(x.dtype)
        return y if layer.bias is None else y + layer.bias

    return product


def stacked(pairs: Sequence[tuple[Tensor, ...] | None], device: torch.device) -> tuple[Tensor, ...]:
    """Return A `[adapters, r, in]`, B `[adapters, r, out]` and its spans of one layer, filled up with zeros."""
    first = next(pair for pair in pairs if pair)
    rank = -(-max(len(pair[0]) for pair in pairs if pair) // ALIGNED) * ALIGNED
    stacks = tuple(part.new_zeros(len(pairs), rank, part.shape[1], device=device) for part in first)
    for number, pair in enumerate(pairs):
        for stack, part in zip(stacks, pair or (), strict=False):
            stack[number, : len(part)] = part
    return stacks


def with_layers(model: Transformer, layers: Mapping[str, nn.Module]) -> Transformer:
    """Return the model with these layers in place of its own, by their paths; the rest is shared."""

    def twin(module: nn.Module) -> nn.Module:
        other = copy.copy(module)
        other._modules = dict(module._modules)
        return other

    adapted = twin(model)
    adapted.few, adapted.logits = NO_BLOCKS, model.logits  # kernels for few tokens read the old layers
    adapted.blocks = nn.ModuleList(map(twin, model.blocks))
    for block in adapted.blocks:
        block.attention, block.mlp = twin(block.attention), twin(block.mlp)
    for path, layer in layers.items():
        adapted.set_submodule(path, layer)
    return adapted


# ---- An engine ----


def read_adapters(options: Iterable[str], loaded: Loaded, folders: Mapping[str, Path]) -> dict[str, Adapter]:
    """Return the adapters in these folders, by name. Raise InvalidInput if an engine with these options takes none."""
    if not folders:
        return {}
    if "token_budget" not in options:
        raise InvalidInput("--lora is for requests that share steps, as from stage 04 on: leave it out")
    if loaded.shard.ranks > 1:
        raise InvalidInput("adapters are not split over ranks: leave out --lora or --tensor-parallel")
    if loaded.note:
        raise InvalidInput(f"adapters are added to common/model.py alone, and this is {loaded.note}: leave out --lora")
    return {name: read_adapter(name, Path(folder), loaded) for name, folder in folders.items()}


def adapter_bytes(adapters: Mapping[str, Adapter]) -> int:
    """Return the bytes that they take on the device: each as many as the largest, see `stacked`."""
    each = [sum(part.nbytes for pair in one.weights.values() for part in pair[:2]) for one in adapters.values()]
    return len(each) * max(each, default=0)


def expect_other_pages(tree: Any) -> None:
    """Raise InvalidInput if a tree, such as a learner's own, finds an adapter's page for the model alone."""
    tree.insert([], SaltedTokens([0], -1), 0)
    if tree.follow([], [0]) is not None:
        raise InvalidInput("this prefix tree shares pages between adapters: let it ask by page_key (common/request.py)")


def add_adapters(engine: BaseEngine, holder: Any, adapters: dict[str, Adapter]) -> str:
    """Give an engine these adapters, and return a note. holder: the engine, or the loop's `Resolved`."""
    if not adapters:
        return ""
    if tree := getattr(getattr(engine.scheduler, "allocator", None), "tree", None):
        expect_other_pages(type(tree)())
    engine.lora = holder.model = AdaptedModel(holder.model, engine.device, adapters)
    engine.adapters, run = adapters, engine.run

    def run_with_adapters(chunks: Sequence[Any]) -> Any:
        engine.lora.plan(chunks)
        try:
            return run(chunks)
        finally:
            engine.lora.step.order = None

    engine.run = run_with_adapters
    return f"adapters {', '.join(adapters)}"
