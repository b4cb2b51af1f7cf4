"""Launches of the other kernels of the step: rotation with the cache's writes, attention over pages, norms.

Decides speed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.infer.hopper_step import launching
from samebits.infer.hopper_step.attention_kernel import attention_of_one_query
from samebits.infer.hopper_step.attention_softmax import WIDE
from samebits.infer.hopper_step.rotation_kernel import rotate_and_keep
from samebits.infer.hopper_step.waiting import merge_waiting, rmsnorm_waiting
from samebits.ops._triton.device import multiprocessors
from samebits.ops._triton.rows import RowLaunch, aligned
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Sequences
from samebits.ops.attention.triton_hopper import layout_of
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


def attend(
    q_MHD: Tensor, kept: tuple[Tensor, Tensor], sequences: Sequences, exponent_factor: float, positions_M: Tensor
) -> Tensor:
    """One query of every sequence against keys and values (rows, heads, D) in pages, the last of which is at its
    position. Every row is some sequence's, so that nothing is filled."""
    (tokens, heads, head), keys = q_MHD.shape, kept[0].shape[1]
    splits, pack = cdiv(sequences.longest_key, SPLIT_KEYS), heads // keys
    alone, columns, wide = splits > 1, max(8, next_power_of_2(pack)), WIDE.value
    assert sequences.pages is not None
    programs = tokens * keys * splits
    # Two programs on a multiprocessor where there are so many.
    few = programs <= multiprocessors(q_MHD.device)
    out = torch.empty_like(q_MHD)
    states: Sequence[Tensor | None] = [None] * 3
    if alone:
        shapes = (q_MHD.shape, q_MHD.shape[:2], q_MHD.shape[:2])
        states = [torch.empty(splits, *shape, dtype=torch.float32, device=q_MHD.device) for shape in shapes]
    layout = layout_of(BLOCK_KEYS, wide, q_MHD.dtype)
    page = min(sequences.page_size, BLOCK_KEYS)
    matrices = (
        TensorDescriptor(q_MHD, [tokens * heads, head], [head, 1], [columns, wide], layout),
        *(TensorDescriptor(x, [x.shape[0], keys * head], [keys * head, 1], [page, wide], layout) for x in kept),
    )
    launching.run(
        attention_of_one_query,
        programs,
        (
            *(*matrices, out, *states, positions_M, sequences.pages, sequences.pages.stride(0)),
            *(tokens * heads, heads, splits, exponent_factor),
        ),
        warps=4,
        maxnreg=168 if few else 128,
        HALVES=head // wide,
        PACK=pack,
        HEADS=columns,
        PAGE=page,
        PAGE_SIZE=sequences.page_size,
        STAGES=(6 if few else 3) * (2 * wide // head),
        SPLIT=SPLIT_KEYS // BLOCK_KEYS,
        ALONE=alone,
    )
    if alone:
        merge(out, states, sequences, exponent_factor)
    return out


def merge(out_MHD: Tensor, states: Sequence[Tensor | None], sequences: Sequences, exponent_factor: float) -> None:
    """The states of all splits of every row, into the rows."""
    tokens, heads, head = out_MHD.shape
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=out_MHD.device)
    lengths = (sequences.q_start, sequences.q_length, sequences.k_length)
    launching.run(
        merge_waiting,
        tokens * heads,
        (out_MHD, lse, *states, *lengths, tokens * heads, heads, 1, exponent_factor),
        warps=1,
        HEAD=head,
        PADDED=head,
        SPLIT=SPLIT_KEYS // BLOCK_KEYS,
        EXACT=False,
        AT_ONCE=STATES_AT_ONCE,
    )
