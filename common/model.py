"""The transformer: one file for the Llama, Mistral, Qwen2 and Qwen3 families, in plain PyTorch.

Everything in the course meets at one call:

    hidden = model(token_ids, positions, attend)      # [N], [N], callable -> [N, hidden_size]
    logits = model.logits(hidden[rows])               # [R, hidden_size] -> [R, V], float32

N is all tokens of this step, of all requests, laid end to end (a ragged batch). There is no batch dimension and no
padding: every operation here treats a token by itself, so the model cannot tell one long prompt from 32 requests
that decode. Tokens see each other only in attention, and attention is not in this file: the caller supplies `attend`
and so decides where K and V live. The eight stages differ in that.

Letters, here and in the whole course: N tokens in the step, B requests, S sequence length, H query heads, H_kv
key/value heads, D head dimension, V vocabulary size.

Production engines keep the same shape of model file and add quantised weights, and kernels that fuse norm, rotation
and activation. For weights split over devices (tensor parallelism) see loader/shard.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import InvalidInput

SCALE_BYTES = 4  # the float32 behind a row of K or V in 8 bits (attention/int8.py)

# attend(layer, q[N, H, D], k[N, H_kv, D], v[N, H_kv, D]) -> [N, H, D]; q and k are already rotated.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and options of one checkpoint. `rope` holds the checkpoint's own rotary parameters."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float = 1e-6
    rope: dict = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10_000.0})
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    kv_int8: bool = False  # whether pages hold K and V in 8 bits; set by `load_model`, not by a checkpoint

    def __post_init__(self):
        if self.kv_int8 and self.head_dim % SCALE_BYTES:
            raise InvalidInput(
                f"K and V in 8 bits need a head dimension that {SCALE_BYTES} divides, and this model's is "
                f"{self.head_dim}: leave out --kv-dtype"
            )

    @property
    def kv_width(self) -> int:
        """Return how many elements a row of K has in a page: D, and in 8 bits the bytes of its scale."""
        return self.head_dim + SCALE_BYTES * self.kv_int8

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Return the bytes of K and V of one token in all layers: 2 * layers * H_kv * D * bytes per element.

        dtype: the model's. K and V in 8 bits take D + 4 bytes per row with any dtype.
        """
        return 2 * self.num_layers * self.num_kv_heads * self.kv_width * (1 if self.kv_int8 else dtype.itemsize)


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al., 2023) without its core: projections, norms and rotation."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        # One matrix for Q, K and V: one large product keeps a processor busier than three small ones.
        qkv_size = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv = nn.Linear(config.hidden_size, qkv_size, bias=config.qkv_bias)
        self.output = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=config.output_bias)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        heads = self.qkv(x).view(len(x), -1, self.head_dim)  # [N, H + 2 * H_kv, D]
        qk, v = heads.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        if self.q_norm is not None:
            q, k = qk.split([self.num_heads, self.num_kv_heads], dim=1)
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)
        q, k = rotate(qk, cos, sin).split([self.num_heads, self.num_kv_heads], dim=1)
        attended = attend(self.layer, q, k, v)  # [N, H, D]
        return self.output(attended.reshape(len(x), -1))


class MLP(nn.Module):
    """SwiGLU (Shazeer, 2020): down(silu(gate(x)) * up(x)), with gate and up in one matrix."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """One layer: attention, then the MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, attend)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """A decoder-only transformer. Parameters are uninitialised memory until a loader or a trainer fills them."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight
        # Not parameters: computed from the config, on a real device even while the parameters are on "meta".
        cos, sin = rope_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return `[N, hidden_size]` after the final norm, for `token_ids[N]` at `positions[N]` (both int64)."""
        x = self.embedding(token_ids)  # [N, hidden_size]
        cos = self.cos[positions].unsqueeze(1).to(x.dtype)  # [N, 1, D], the same for every head
        sin = self.sin[positions].unsqueeze(1).to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin, attend)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return next-token scores `[R, V]` in float32 for the rows that will be sampled, `hidden[R, hidden_size]`."""
        return self.head(hidden).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding (Su et al., 2021) to `x[N, heads, D]`, pairing dimension i with i + D/2.

    A rotation maps the pair (a, b) to (a cos - b sin, b cos + a sin). Rolling by D/2 swaps a and b, and the table
    holds the first half of `sin` negated, so that the rotation is one multiplication and one fused multiply-add.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def rope_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each `[context_length, D]` in float32, the first half of sin negated (see `rotate`)."""
    inverse_frequency, scale = rope_frequencies(config.rope, config.head_dim)
    angles = torch.outer(torch.arange(config.context_length, device="cpu").float(), inverse_frequency)  # [S, D/2]
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rope_frequencies(rope: dict, head_dim: int) -> tuple[Tensor, float]:
    """Return radians per position for each of the D/2 pairs (float32), and a factor on cos and sin.

    The scalings stretch a model trained on short texts to longer ones. `linear` slows all pairs alike (Chen et al.,
    2023); `llama3` and `yarn` (Peng et al., 2023) keep the fast pairs, which tell neighbours apart, slow the slow
    ones, and interpolate in between.
    """
    pairs = torch.arange(0, head_dim, 2, device="cpu").float()
    frequency = 1.0 / rope["rope_theta"] ** (pairs / head_dim)
    kind = rope["rope_type"]
    if kind == "default":
        return frequency, 1.0
    factor = rope["factor"]
    if kind == "linear":
        return frequency / factor, 1.0
    original_length = rope["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        rotations = original_length * frequency / (2 * math.pi)  # full turns over the original context
        keep = ((rotations - low) / (high - low)).clamp(0, 1)
        return frequency * (keep + (1 - keep) / factor), 1.0
    if kind == "yarn":

        def pair_with(rotations: float) -> float:  # index of the pair with this many full turns over the context
            return head_dim * math.log(original_length / (rotations * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

        low, high = pair_with(rope.get("beta_fast") or 32), pair_with(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        ramp = (torch.arange(head_dim // 2, device="cpu").float() - low) / (high - low or 0.001)
        keep = 1 - ramp.clamp(0, 1)
        return frequency * (keep + (1 - keep) / factor), yarn_attention_factor(rope)
    raise InvalidInput(f"rope_type {kind!r} is not supported; supported are default, linear, llama3 and yarn")


def yarn_attention_factor(rope: dict) -> float:
    """Return YaRN's factor on cos and sin: it sharpens attention, which a longer context would flatten."""
    if rope.get("attention_factor") is not None:
        return rope["attention_factor"]

    def magnitude(mscale: float) -> float:
        return 0.1 * mscale * math.log(rope["factor"]) + 1.0 if rope["factor"] > 1 else 1.0

    mscale, mscale_all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)
