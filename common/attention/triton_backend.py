"""Launch the Triton kernels: how many programs, and how large their blocks are."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from common.fused.rotation import Unrotated
from common.fused.triton_launch import interpreted, tuned

from .batch import PagedBatch
from .window import current_window

# Tokens of a sequence in one piece: fixed for an engine, so that results do not depend on the batch. Few requests need
# many programs for each sequence; for many, filling the pipeline again for each piece costs more than it gains. On an
# H200 a step of 256 requests takes 6.7 ms with pieces of 256 tokens and 6.2 with 1,024; of one request 1.3 and 1.5.
SPLIT, LONG_SPLIT, MANY = 256, 1024, 128  # SPLIT is for engines of fewer than MANY requests at once
MAX_PIECES = 32  # of a sequence; a longer sequence has larger pieces, so that the results take no more memory
PROGRAMS = 4096  # of a decode launch, at most, roughly: more do not keep a large GPU busier


class Tile(NamedTuple):
    """How a decode program works: tokens of K and V read at a time, its warps, and the stages of its pipeline."""

    block_n: int = 64
    warps: int = 4
    stages: int = 3


# `python -m common.bench.gpu --only smoke` times them all; the table in tuned.json says which one a GPU gets.
TILES = (Tile(), Tile(64, 2, 3), Tile(32, 4, 4), Tile(128, 8, 3))


@dataclass
class Plan:
    """What `attend` needs in every layer of one step."""

    batch: PagedBatch
    arrived: Tensor | None = None  # [decodes, H_kv] int32, from the first layer on: see `decode_kernel`


class TritonAttention:
    name, capturable = "triton", True

    def __init__(self, dtype: torch.dtype, tile: Tile = TILES[0]):
        from .triton_kernels import tl

        types = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
        self.dot = tl.float32 if interpreted() and dtype == torch.bfloat16 else types[dtype]
        self.tile, self.split = tile, SPLIT

    def expect(self, requests: int) -> None:
        """Choose the size of the pieces for an engine of up to `requests` requests at once, before the first runs."""
        self.split = SPLIT if requests < MANY else LONG_SPLIT

    def prepare(self, batch: PagedBatch) -> Plan:
        return Plan(batch)

    def write(self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slot_mapping: Tensor) -> None:
        """As `Attention.write`; a k that waits to be rotated (fused/rotation.py) is written by the same launch."""
        from .triton_kernels import triton, write_int8_kernel, write_kernel

        if k_pages.dtype == torch.int8:
            _, heads, D = k.shape  # Reading the shape rotates a k that waits.
            write_int8_kernel[(len(k), heads)](
                k, v, k_pages, v_pages, slot_mapping, k.stride(0), v.stride(0), heads, D,
                triton.next_power_of_2(D),
            )  # fmt: skip
            return
        if isinstance(k, Unrotated) and v is k.launch.v and k is k.launch.k():
            return k.launch.write(k_pages, v_pages, slot_mapping)
        size = k.shape[1] * k.shape[2]
        write_kernel[(len(k),)](
            k, v, k_pages, v_pages, slot_mapping, k.stride(0), v.stride(0), size, triton.next_power_of_2(size)
        )

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Plan) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if plan.batch.decodes:
            self._decode(q, k_pages, v_pages, plan, out)
        if plan.batch.decodes < len(plan.batch.host_lengths):
            self._prefill(q, k_pages, v_pages, plan.batch, out)
        return out

    def _decode(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Plan, out: Tensor) -> None:
        from .triton_kernels import decode_kernel, triton

        batch, (_, H, D), (_, page_size, H_kv, _) = plan.batch, q.shape, k_pages.shape
        B = batch.decodes
        # In a graph the host's lengths are the longest possible, so the number of pieces is the largest possible.
        pieces = min(-(-max(batch.host_lengths[:B]) // self.split), MAX_PIECES)
        partial = torch.empty(B, pieces, H, D, dtype=torch.float32, device=q.device)
        lse = torch.empty(B, pieces, H, dtype=torch.float32, device=q.device)
        if plan.arrived is None or plan.arrived.shape[1] != H_kv:
            plan.arrived = torch.zeros(B, H_kv, dtype=torch.int32, device=q.device)
        decode_kernel[(B, H_kv, min(pieces, -(-PROGRAMS // (B * H_kv))))](
            q, k_pages, v_pages, batch.page_tables, batch.lengths, partial, lse, plan.arrived, out,
            pieces, q.stride(0), batch.page_tables.stride(0), D**-0.5,
            H_kv, H // H_kv, D, page_size, self.split, MAX_PIECES,
            # A product on tensor cores has at least 16 rows and columns.
            BLOCK_G=max(16, triton.next_power_of_2(H // H_kv)), BLOCK_N=self.tile.block_n,
            BLOCK_D=max(16, triton.next_power_of_2(D)), DOT=self.dot, WINDOW=current_window() or 0,
            num_warps=self.tile.warps, num_stages=self.tile.stages,
        )  # fmt: skip

    def _prefill(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: PagedBatch, out: Tensor) -> None:
        from .triton_kernels import prefill_kernel, triton

        (_, H, D), (_, page_size, H_kv, _) = q.shape, k_pages.shape
        rows = batch.host_query_lengths[batch.decodes :]
        block_m = 32 if q.dtype == torch.float32 else 64  # rows: their sums fit into registers
        prefill_kernel[(-(-max(rows) // block_m), H, len(rows))](
            q, k_pages, v_pages, batch.page_tables, batch.query_starts, batch.lengths, out,
            batch.decodes, q.stride(0), batch.page_tables.stride(0), D**-0.5, H_kv, H // H_kv, D, page_size,
            BLOCK_M=block_m, BLOCK_N=32 if q.dtype == torch.float32 else 64,
            BLOCK_D=max(16, triton.next_power_of_2(D)), DOT=self.dot, WINDOW=current_window() or 0, num_stages=2,
        )  # fmt: skip


def create(device: torch.device, dtype: torch.dtype, head_dim: int) -> TritonAttention:
    """Return the backend with the tile that the table has for this GPU, or with the default one."""
    key = f"{str(dtype).removeprefix('torch.')} {head_dim}"
    return TritonAttention(dtype, Tile(*tuned(device).get(key, ())))
