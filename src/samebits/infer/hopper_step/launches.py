"""Launches of the other kernels of the step: rotation with the cache's writes, attention over pages, norms.

Decides speed alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from samebits.infer.hopper_step import launching
from samebits.infer.hopper_step.rotation_kernel import rotate_and_keep
from samebits.infer.hopper_step.waiting import merge_waiting, rmsnorm_waiting
from samebits.ops._triton.rows import RowLaunch, aligned
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention import triton_decode
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Rule, Sequences
from samebits.ops.attention.triton_decode_kernel import attention_of_one_query
from samebits.ops.attention.triton_kernel import STATES_AT_ONCE
from samebits.ops.rmsnorm.triton_kernel import LANES, chosen_launch

HEADS = 8
"""Of a program that rotates: few, for one token has to keep some multiprocessors busy."""


class Unrotated(NamedTuple):
    """What is to be rotated and kept: the products of one token of every sequence."""

    products: tuple[Tensor, Tensor, Tensor]
    """Queries, keys and values (M, heads times D); their rows may lie apart."""
    positions: Tensor
    """(M), as are the next."""
    written: Tensor
    """Rows of the cache."""
    table: tuple[Tensor, float]
    """Frequencies, and what sine and cosine are multiplied by."""


def rotate(unrotated: Unrotated, head: int, kept: tuple[Tensor, Tensor]) -> Tensor:
    """Rotated queries (M, H, D); rotated keys and the values go to the rows `written` of `kept` (rows, heads, D)."""
    q, k, v = unrotated.products
    frequencies, factor = unrotated.table
    heads, key_heads, pairs = q.shape[1] // head, k.shape[1] // head, head // 2
    rotated = torch.empty(q.shape[0], heads, head, dtype=q.dtype, device=q.device)
    launching.run(
        rotate_and_keep,
        q.shape[0] * cdiv(heads + 2 * key_heads, HEADS),
        (
            *(q, k, v, rotated, *kept, unrotated.positions, unrotated.written, frequencies),
            *(q.stride(0), k.stride(0), v.stride(0), heads, key_heads, pairs, factor),
        ),
        warps=4,
        SCALED=factor != 1.0,
        HEADS=HEADS,
        PAIRS=next_power_of_2(pairs),
    )
    return rotated


def norm(x_MH: Tensor, branch_MH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(stream, its norm): the stream is round(x + branch)."""
    m, width = x_MH.shape
    y, stream = torch.empty_like(x_MH), torch.empty_like(x_MH)
    rstd = torch.empty(m, dtype=torch.float32, device=x_MH.device)
    launch = chosen_launch(width)
    if width > launch.columns:
        # Loads of a whole row under way together.
        launch = RowLaunch(rows=1, columns=min(4096, next_power_of_2(width)), warps=8)
    launching.run(
        rmsnorm_waiting,
        cdiv(m, launch.rows),
        (x_MH, branch_MH, weight_H, y, stream, rstd, m, width, 1.0 / width, eps),
        warps=launch.warps,
        num_stages=launch.stages,
        ROWS=launch.rows,
        STEPS=max(1, launch.columns // LANES),
        ALIGNED=aligned(x_MH, branch_MH, weight_H, y, stream),
    )
    return stream, y


def attend(q_MHD: Tensor, kept: tuple[Tensor, Tensor], sequences: Sequences, rule: Rule, positions_M: Tensor) -> Tensor:
    """One query of every sequence against keys and values (rows, heads, D) in pages, the last of which is at its
    position. Every row is some sequence's, so that nothing is filled."""
    splits = cdiv(sequences.longest_key, SPLIT_KEYS)
    out = torch.empty_like(q_MHD)
    lse = torch.empty(q_MHD.shape[:2], dtype=torch.float32, device=q_MHD.device)
    states: tuple[Tensor | None, ...] = (None, None, None)
    if splits > 1:
        shapes = (q_MHD.shape, q_MHD.shape[:2], q_MHD.shape[:2])
        states = tuple(torch.empty(splits, *shape, dtype=torch.float32, device=q_MHD.device) for shape in shapes)
    results = triton_decode.Results(out, lse, states)
    made = triton_decode.prepared(q_MHD, *kept, results, sequences, rule, positions_M)
    launching.run(attention_of_one_query, made.programs, made.arguments, warps=triton_decode.WARPS, **made.constants)
    if splits > 1:
        merge(results, sequences, rule.exponent_factor)
    return out


def merge(results: triton_decode.Results, sequences: Sequences, exponent_factor: float) -> None:
    """The states of all splits of every row, into the rows."""
    tokens, heads, head = results.out.shape
    lengths = (sequences.q_start, sequences.q_length, sequences.k_length)
    launching.run(
        merge_waiting,
        tokens * heads,
        (results.out, results.lse, *results.states, *lengths, tokens * heads, heads, 1, exponent_factor),
        warps=1,
        HEAD=head,
        PADDED=head,
        SPLIT=SPLIT_KEYS // BLOCK_KEYS,
        EXACT=False,
        AT_ONCE=STATES_AT_ONCE,
    )
