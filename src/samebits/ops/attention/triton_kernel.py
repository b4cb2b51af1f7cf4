"""Launches of attention by Triton, forward: the choice of a tile, descriptors of keys and values, the grid.

Knows nothing of autograd, validation or empty batches; the public function does. Tile, warps, stages, the way in which
keys are loaded, whether the heads of a group share a tile and whether splits of keys have programs of their own decide
speed alone; the kernels are in triton_forward.py and triton_merge.py, and two for Hopper in triton_hopper_forward.py
and triton_decode_kernel.py.
The backward pass is launched by triton_backward.py."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention import triton_decode, triton_hopper
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Rule, Sequences
from samebits.ops.attention.triton_backward import backward
from samebits.ops.attention.triton_blocks import aligned, describable, describe
from samebits.ops.attention.triton_forward import attention_forward
from samebits.ops.attention.triton_merge import attention_merge
from samebits.ops.attention.triton_uncovered import fill_uncovered

__all__ = ["Launch", "backward", "forward"]


# Speed only: numbers that the states of all splits may hold before one program walks them all (256 MB), and states that
# the merge reads at once.
MOST_SHARED = 2**26
STATES_AT_ONCE = 8
# Programs up to which each has a multiprocessor nearly to itself, where two warps wait less for each other than four.
FEW_PROGRAMS = 264


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Decides speed, never bits."""

    tile: int = 64
    """Rows of a tile: queries, or queries times the heads of a group."""
    packed: bool = False
    """The heads of a group share a tile and so its keys: for few queries."""
    described: bool = True
    """Whole blocks of keys come through the tensor memory accelerator where it can take them."""
    shared: bool = False
    """Each split of keys has a program of its own, and another kernel merges them: for few queries over many keys."""
    specialised: bool = True
    """By the kernel in triton_hopper_forward.py, whatever the tile, where it can take what is asked and blocks may come
    through the tensor memory accelerator: for many queries."""
    decoded: bool = False
    """By the kernel in triton_decode_kernel.py, whatever the tile, where it can take what is asked: for single queries.
    Splits have programs of their own there."""
    warps: int = 4
    stages: int = 3


def choose(q: Tensor, group: int, sequences: Sequences, splits: int) -> Launch:
    """The launch for sequences of these sizes."""
    count, longest_query = sequences.count, sequences.longest_query
    heads, head = q.shape[1:]
    packed = 1 < group <= 16 and longest_query <= 16
    shared = splits > 1 and longest_query <= 16 and splits * q.numel() <= MOST_SHARED
    if q.dtype == torch.float32:
        tile = 16 if head > 64 else 32
        return Launch(tile=tile, packed=packed, described=False, shared=shared, warps=4, stages=1)
    tile = 16 if longest_query * (group if packed else 1) <= 16 else 64
    programs = count * (heads // group if packed else heads) * (splits if shared else 1)
    warps = 2 if tile == 16 and programs <= FEW_PROGRAMS else 4
    stages = 3 if head <= 128 else 2
    specialised = triton_hopper.pays(q, sequences)
    decoded = (shared or splits == 1) and triton_decode.pays(q, group, sequences, splits)
    return Launch(
        tile=tile, packed=packed, shared=shared, specialised=specialised, decoded=decoded, warps=warps, stages=stages
    )


def forward(
    q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule, *, launch: Launch | None = None
) -> tuple[Tensor, Tensor]:
    """(out, lse in powers of two): q (Tq, Hq, D), k and v (Tk, Hk, D); rows of no sequence are 0 and +inf."""
    (tokens, heads, head), group = q.shape, q.shape[1] // k.shape[1]
    splits = cdiv(sequences.longest_key, SPLIT_KEYS)
    launch = launch or forced_launch(Launch) or choose(q, group, sequences, splits)
    decoded = launch.decoded and triton_decode.takes(q, k, v, sequences, rule)
    specialised = launch.specialised and launch.described and not launch.packed and not decoded
    if specialised and triton_hopper.takes(q, k, v, sequences, rule):
        return triton_hopper.forward(q, k, v, sequences, rule)
    out = torch.empty(tokens, heads, head, dtype=q.dtype, device=q.device)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    alone = splits > 1 and (launch.shared or decoded)
    states = _states(q, splits > 1, splits if alone else 1)
    with on_device(q):
        if decoded:
            triton_decode.forward(q, k, v, triton_decode.Results(out, lse, states), sequences, rule)
        else:
            fill_uncovered(out, lse, sequences.q_start, sequences.q_length, math.inf)
            _by_triton(q, k, v, (out, lse, *states), sequences, rule, launch, splits)
        if alone:
            _merge(out, lse, states, sequences, rule)
    return out, lse


def _by_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    results: tuple[Tensor | None, ...],
    sequences: Sequences,
    rule: Rule,
    launch: Launch,
    splits: int,
) -> None:
    """`attention_forward`, into out and lse, or into states; a walk over splits keeps sums in the first of those."""
    (tokens, heads, head), group = q.shape, q.shape[1] // k.shape[1]
    pack, pages = group if launch.packed else 1, sequences.pages
    tiles, alone = cdiv(sequences.longest_query, launch.tile // pack), splits > 1 and launch.shared
    described = launch.described and pages is None and q.dtype != torch.float32 and describable(k, v)
    matrices = (describe(k, BLOCK_KEYS), describe(v, BLOCK_KEYS)) if described else (None, None)
    tables = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    run(
        attention_forward,
        sequences.count * (heads // pack) * tiles * (splits if alone else 1),
        (
            *(q, k, v, *matrices, *results, *tables, pages),
            *(*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], 0 if pages is None else pages.stride(0)),
            *(tokens * heads, sequences.page_size, heads, tiles, splits),
            *(rule.window, rule.exponent_factor, rule.score_factor, rule.cap),
        ),
        warps=launch.warps,
        stages=launch.stages,
        HEAD=head,
        PADDED=max(16, next_power_of_2(head)),
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
        SEVERAL=splits > 1,
        ALONE=alone,
        SPLIT=SPLIT_KEYS // BLOCK_KEYS,
    )


def _states(q: Tensor, several: bool, splits: int) -> tuple[Tensor | None, ...]:
    """Memory for what splits give: sums of values, of weights, and maxima; a walk keeps the first alone in it."""
    if not several:
        return None, None, None
    sums = torch.empty(splits, *q.shape, dtype=torch.float32, device=q.device)
    if splits == 1:
        return sums, None, None
    return sums, *(torch.empty(splits, *q.shape[:2], dtype=torch.float32, device=q.device) for _ in range(2))


def _merge(out: Tensor, lse: Tensor, states: tuple[Tensor | None, ...], sequences: Sequences, rule: Rule) -> None:
    tokens, heads, head = out.shape
    longest = sequences.longest_query
    tables = (sequences.q_start, sequences.q_length, sequences.k_length)
    run(
        attention_merge,
        sequences.count * longest * heads,
        (out, lse, *states, *tables, tokens * heads, heads, longest, rule.exponent_factor),
        warps=1,
        stages=1,
        HEAD=head,
        PADDED=max(16, next_power_of_2(head)),
        EXACT=out.dtype == torch.float32,
        SPLIT=SPLIT_KEYS // BLOCK_KEYS,
        AT_ONCE=STATES_AT_ONCE,
    )
