"""Launches of the other kernels of a step: rotation with the cache's writes, attention without fills, norms.

Decides speed alone."""

from __future__ import annotations

import torch
from torch import Tensor

from decode_step import launching
from decode_step.rotation_kernel import rotate_and_keep
from decode_step.waiting import attention_waiting, merge_waiting, rmsnorm_waiting
from samebits.ops._triton.rows import aligned
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Rule, Sequences
from samebits.ops.attention.triton_blocks import aligned as heads_aligned
from samebits.ops.attention.triton_kernel import STATES_AT_ONCE, choose
from samebits.ops.rmsnorm.triton_kernel import LANES, chosen_launch

HEADS = 8
"""Of a program that rotates: few, for one token has to keep some multiprocessors busy."""


def rotate(
    products: tuple[Tensor, Tensor, Tensor],
    head: int,
    kept: tuple[Tensor, Tensor],
    positions_M: Tensor,
    written_M: Tensor,
    table: tuple[Tensor, float],
    *,
    programmatic: bool,
) -> Tensor:
    """Rotated queries (M, H, D); rotated keys and the values go to the rows `written` of the cache.

    `products`: queries, keys and values (M, heads times D) whose rows may lie apart; `kept`: keys and values (rows,
    heads, D); `table`: frequencies and what sine and cosine are multiplied by."""
    q, k, v = products
    frequencies, factor = table
    heads, key_heads, pairs = q.shape[1] // head, k.shape[1] // head, head // 2
    rotated = torch.empty(q.shape[0], heads, head, dtype=q.dtype, device=q.device)
    launching.run(
        rotate_and_keep,
        q.shape[0] * cdiv(heads + 2 * key_heads, HEADS),
        (
            *(q, k, v, rotated, *kept, positions_M, written_M, frequencies),
            *(q.stride(0), k.stride(0), v.stride(0), heads, key_heads, pairs, factor),
        ),
        warps=4,
        programmatic=programmatic,
        SCALED=factor != 1.0,
        HEADS=HEADS,
        PAIRS=next_power_of_2(pairs),
    )
    return rotated


def norm(
    x_MH: Tensor, residual_MH: Tensor | None, weight_H: Tensor, eps: float, *, programmatic: bool
) -> tuple[Tensor, Tensor]:
    """(stream, its norm): the stream is x, or round(x + residual)."""
    m, width = x_MH.shape
    y, hidden = torch.empty_like(x_MH), None if residual_MH is None else torch.empty_like(x_MH)
    rstd = torch.empty(m, dtype=torch.float32, device=x_MH.device)
    launch = chosen_launch(width)
    launching.run(
        rmsnorm_waiting,
        cdiv(m, launch.rows),
        (x_MH, residual_MH, weight_H, y, hidden, rstd, m, width, 1.0 / width, eps),
        warps=launch.warps,
        programmatic=programmatic,
        num_stages=launch.stages,
        ROWS=launch.rows,
        STEPS=max(1, launch.columns // LANES),
        ALIGNED=aligned(x_MH, residual_MH, weight_H, y, hidden),
    )
    return x_MH if hidden is None else hidden, y


def attend(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule, *, programmatic: bool) -> Tensor:
    """One query of every sequence, its keys in pages; every row is some sequence's, so that nothing is filled."""
    (tokens, heads, head), group = q.shape, q.shape[1] // k.shape[1]
    splits = cdiv(sequences.longest_key, SPLIT_KEYS)
    several = splits > 1
    launch = choose(q, group, sequences, splits)
    pack = group if launch.packed else 1
    alone = several and launch.shared
    assert sequences.pages is not None and sequences.longest_query == 1
    out = torch.empty_like(q)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    states = [
        torch.empty(splits if alone else 1, *shape, dtype=torch.float32, device=q.device) if wanted else None
        for wanted, shape in ((several, q.shape), (alone, q.shape[:2]), (alone, q.shape[:2]))
    ]
    sizes = {"HEAD": head, "PADDED": max(16, next_power_of_2(head)), "SPLIT": SPLIT_KEYS // BLOCK_KEYS}
    starts = (sequences.q_start, sequences.q_length)
    launching.run(
        attention_waiting,
        sequences.count * (heads // pack) * (splits if alone else 1),
        (
            *(q, k, v, None, None, out, lse, *states),
            *(*starts, sequences.k_start, sequences.k_length, sequences.pages),
            *(*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], sequences.pages.stride(0), tokens * heads),
            *(sequences.page_size, heads, 1, splits, rule.window),
            *(rule.exponent_factor, rule.score_factor, rule.cap),
        ),
        warps=launch.warps,
        programmatic=programmatic,
        num_stages=launch.stages,
        **sizes,
        GROUP=group,
        PACK=pack,
        TILE=launch.tile,
        CAUSAL=rule.causal,
        WINDOWED=rule.window > 0,
        SOFTCAP=rule.softcap > 0,
        DESCRIBED=False,
        PAGED=True,
        ALIGNED=heads_aligned(q, k, v),
        EXACT=q.dtype == torch.float32,
        SEVERAL=several,
        ALONE=alone,
    )
    if alone:
        launching.run(
            merge_waiting,
            tokens * heads,
            (out, lse, *states, *starts, sequences.k_length, tokens * heads, heads, 1, rule.exponent_factor),
            warps=1,
            programmatic=programmatic,
            **sizes,
            EXACT=q.dtype == torch.float32,
            AT_ONCE=STATES_AT_ONCE,
        )
    return out
