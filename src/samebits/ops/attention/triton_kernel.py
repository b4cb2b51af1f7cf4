"""Launches of attention by Triton, forward: the choice of a tile, descriptors of keys and values, the grid.

Knows nothing of autograd, validation or empty batches; the public function does. Tile, warps, stages, the way in which
keys are loaded and whether the heads of a group share a tile decide speed alone; the kernel is in triton_forward.py.
The backward pass is launched by triton_backward.py."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from samebits.native.launch_numbers import forced
from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run
from samebits.ops.attention.forms import BLOCK_KEYS, Rule, Sequences
from samebits.ops.attention.triton_backward import backward
from samebits.ops.attention.triton_blocks import aligned, describable, describe
from samebits.ops.attention.triton_forward import attention_forward

__all__ = ["Launch", "backward", "forward"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Decides speed, never bits."""

    tile: int = 64
    """Rows of a tile: queries, or queries times the heads of a group."""
    packed: bool = False
    """The heads of a group share a tile and so its keys: for few queries."""
    described: bool = True
    """Whole blocks of keys come through the tensor memory accelerator where it can take them."""
    warps: int = 4
    stages: int = 3


def choose(q: Tensor, group: int, longest_query: int) -> Launch:
    """The launch for these sizes."""
    head = q.shape[-1]
    packed = 1 < group <= 16 and longest_query <= 16
    if q.dtype == torch.float32:
        return Launch(tile=16 if head > 64 else 32, packed=packed, described=False, warps=4, stages=1)
    if longest_query * (group if packed else 1) <= 16:
        return Launch(tile=16, packed=packed, warps=4, stages=3 if head <= 128 else 2)
    return Launch(tile=64, packed=packed, warps=4, stages=3 if head <= 128 else 2)


def forward(
    q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule, *, launch: Launch | None = None
) -> tuple[Tensor, Tensor]:
    """(out, lse in powers of two): q (Tq, Hq, D), k and v (Tk, Hk, D); rows of no sequence are 0 and +inf."""
    (tokens, heads, head), group = q.shape, q.shape[1] // k.shape[1]
    asked = forced("launch")
    launch = launch or (asked if isinstance(asked, Launch) else None) or choose(q, group, sequences.longest_query)
    pack = group if launch.packed else 1
    out = torch.zeros(tokens, heads, head, dtype=q.dtype, device=q.device)
    lse = torch.full((tokens, heads), math.inf, dtype=torch.float32, device=q.device)
    tiles = triton.cdiv(sequences.longest_query, launch.tile // pack)
    described = launch.described and sequences.pages is None and q.dtype != torch.float32 and describable(k, v)
    pages = sequences.pages
    matrices = (describe(k, BLOCK_KEYS), describe(v, BLOCK_KEYS)) if described else (None, None)
    arguments = (
        q,
        k,
        v,
        *matrices,
        out,
        lse,
        sequences.q_start,
        sequences.q_length,
        sequences.k_start,
        sequences.k_length,
        pages,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        0 if pages is None else pages.stride(0),
        sequences.page_size,
        heads,
        tiles,
        rule.window,
        rule.exponent_factor,
        rule.score_factor,
        rule.cap,
    )
    with on_device(q):
        run(
            attention_forward,
            sequences.count * (heads // pack) * tiles,
            arguments,
            warps=launch.warps,
            stages=launch.stages,
            HEAD=head,
            PADDED=max(16, triton.next_power_of_2(head)),
            GROUP=group,
            PACK=pack,
            TILE=launch.tile,
            CAUSAL=rule.causal,
            WINDOWED=rule.window > 0,
            SOFTCAP=rule.softcap > 0,
            DESCRIBED=described,
            PAGED=pages is not None,
            ALIGNED=aligned(q, k, v),
            EXACT=q.dtype == torch.float32,
        )
    return out, lse
