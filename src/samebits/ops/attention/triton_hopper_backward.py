"""Launches of attention's backward pass for Hopper, by Gluon: row sums, dQ over the keys, dK and dV over the queries.

Decides speed alone: triton_backward.py chooses between this and the kernels by Triton, whose bits are the same. Tiles
in which something is not finite are marked, and done again by kernels that know which pairs a mask separates. Nothing
is filled but marks and the rows of no sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv
from samebits.ops.attention import triton_hopper
from samebits.ops.attention.forms import Rule, Sequences
from samebits.ops.attention.triton_blocks import describable
from samebits.ops.attention.triton_delta import row_sums
from samebits.ops.attention.triton_hopper import ROWS, Tiles, described, layout_of
from samebits.ops.attention.triton_hopper_dk_dv import attention_dk_dv_hopper
from samebits.ops.attention.triton_hopper_dq import attention_dq_hopper
from samebits.ops.attention.triton_hopper_walking import GROUPS
from samebits.ops.attention.triton_marked import MARKS, attention_dk_dv_marked, attention_dq_marked
from samebits.ops.attention.triton_uncovered import fill_uncovered

STAGES = {64: 4, 128: 3}
"""Blocks that are walked, on their way into shared memory, by the size of a head."""
FEWEST = 192
"""Tiles of queries from which on these kernels are faster than those by Triton."""


def takes(do: Tensor, q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> bool:
    """Whether these kernels can do what is asked."""
    return triton_hopper.takes(q, k, v, sequences, rule) and describable(do)


def pays(q: Tensor, sequences: Sequences) -> bool:
    """Whether there are so many tiles that these kernels are faster than those by Triton."""
    return sequences.count * q.shape[1] * cdiv(sequences.longest_query, GROUPS.value * ROWS) >= FEWEST


def backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sequences: Sequences, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped like q, k, v and contiguous; rows of no sequence are 0."""
    # Lines of a multiple of 16 bytes, as the tensor memory accelerator wants them. Behind a sequence's end they are
    # read, too: zeros, since 0 times what memory held might not be 0.
    pitch = cdiv(sequences.longest_query, 4) * 4
    statistics = torch.zeros(sequences.count * 2 * q.shape[1], pitch, dtype=torch.float32, device=q.device)
    with on_device(q):
        row_sums(do, out, lse, sequences, statistics)
        given = (q, k, v, do, statistics, sequences, rule)
        return _dq(*given), *_dk_dv(*given)


def _dq(q: Tensor, k: Tensor, v: Tensor, do: Tensor, statistics: Tensor, sequences: Sequences, rule: Rule) -> Tensor:
    (_, heads, head), group = q.shape, q.shape[1] // k.shape[1]
    dq, pitch = torch.empty(q.shape, dtype=q.dtype, device=q.device), statistics.shape[1]
    tables = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    read = 2 * sequences.longest_key * head // group
    tiles = Tiles.of(q, sequences.count * heads, sequences.longest_query, GROUPS.value, read)
    flags = {"HEAD": head, "GROUP": group, "CAUSAL": rule.causal, "WINDOWED": rule.window > 0}
    factors = (rule.window, rule.exponent_factor, rule.gradient_factor)
    fill_uncovered(dq, dq, sequences.q_start, sequences.q_length, 0.0)
    run(
        attention_dq_hopper,
        tiles.programs,
        (
            *(described(q), described(do), described(k), described(v)),
            *(statistics, dq, tiles.marks, tiles.marks[-1:]),
            *tables,
            *(pitch, tiles.lines, heads, tiles.of_line, tiles.section, *factors),
        ),
        warps=4,
        stages=1,
        **flags,
        STAGES=STAGES[head],
    )
    sizes = (pitch, heads, tiles.count, GROUPS.value * tiles.of_line, *factors)
    _again(attention_dq_marked, tiles, (q, k, v, do, statistics), (dq,), tables, sizes, flags)
    return dq


def _dk_dv(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, statistics: Tensor, sequences: Sequences, rule: Rule
) -> tuple[Tensor, Tensor]:
    (_, heads, head), key_heads = q.shape, k.shape[1]
    group, pitch = heads // key_heads, statistics.shape[1]
    tables = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    read = 2 * sequences.longest_query * head * group
    tiles = Tiles.of(k, sequences.count * key_heads, sequences.longest_key, GROUPS.value, read)
    flags = {"HEAD": head, "GROUP": group, "CAUSAL": rule.causal, "WINDOWED": rule.window > 0}
    factors = (rule.window, rule.exponent_factor, rule.gradient_factor)
    fill_uncovered(dk, dv, sequences.k_start, sequences.k_length, 0.0)
    lines = TensorDescriptor(
        statistics, list(statistics.shape), [pitch, 1], [1, ROWS], layout_of(1, ROWS, torch.float32)
    )
    run(
        attention_dk_dv_hopper,
        tiles.programs,
        (
            *(described(q), described(do), described(k), described(v), lines),
            *(dk, dv, tiles.marks, tiles.marks[-1:]),
            *tables,
            *(tiles.lines, heads, tiles.of_line, tiles.section, *factors),
        ),
        warps=4,
        stages=1,
        **flags,
        STAGES=STAGES[head],
    )
    sizes = (pitch, heads, tiles.count, GROUPS.value * tiles.of_line, *factors)
    _again(attention_dk_dv_marked, tiles, (q, k, v, do, statistics), (dk, dv), tables, sizes, flags)
    return dk, dv


def _again(
    kernel: Any,
    tiles: Tiles,
    read: tuple[Tensor, ...],
    written: tuple[Tensor, ...],
    tables: tuple[Tensor, ...],
    sizes: tuple[float, ...],
    flags: dict[str, Any],
) -> None:
    """Marked tiles once more, with care."""
    strides = [x.stride(0) for x in read[:4]]
    run(
        kernel,
        cdiv(tiles.count, MARKS.value),
        (*read, tiles.marks, *written, *tables, *strides, *sizes),
        warps=4,
        stages=1,
        **flags,
    )
