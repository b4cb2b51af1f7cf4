"""Launches of the kernels here: `forward` and `backward` take and give what those of ops/attention/triton_kernel.py do.

Decides speed alone. Which calls they take is `takes`; nothing is filled but marks and the rows of no sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from hopper_attention.careful import MARKS, attention_dk_dv_marked, attention_dq_marked
from hopper_attention.dk_dv import attention_dk_dv_hopper
from hopper_attention.dq import attention_dq_hopper
from hopper_attention.forward import attention_hopper_whole
from hopper_attention.uncovered import attention_uncovered
from samebits.ops._triton.device import multiprocessors, on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv
from samebits.ops.attention import triton_hopper
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Rule, Sequences
from samebits.ops.attention.triton_backward import DELTA_ROWS
from samebits.ops.attention.triton_blocks import aligned, describable, describe
from samebits.ops.attention.triton_delta import attention_delta
from samebits.ops.attention.triton_forward import attention_forward

ROWS = 64
"""Of a group of warps, and of a mark; a tile has two groups, and a block as many."""
COVERED_ROWS = 64
_ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float32: gl.float32}


@dataclass(frozen=True, slots=True)
class Depth:
    """How much is on its way into shared memory, of which there are 227 kB; a block is 32 kB with heads of 128."""

    stages: int
    """Blocks that are walked."""
    buffers: int = 1
    """Tiles' own rows: with two, the next tile's come while one is in use."""


FORWARD = {64: Depth(4, 2), 128: Depth(3, 2)}
BACKWARD = {64: Depth(4, 2), 128: Depth(3, 1)}
SHORT_BACKWARD = {64: Depth(4, 2), 128: Depth(2, 2)}
"""Up to so many tokens a tile is a few blocks, and waiting for its own rows counts."""
SHORT = 2048


def depth_of(head: int, longest: int) -> Depth:
    """Of the kernels of the backward pass, by the tokens of the longest sequence."""
    return (SHORT_BACKWARD if longest <= SHORT else BACKWARD)[head]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of 128 rows of every line, a line being a head of a sequence."""

    lines: int
    of_line: int
    section: int
    """Lines whose keys and values, or queries and gradients of the output, fit into the cache."""
    marks: Tensor
    """One for every 64 rows, and behind them the number of the tile that comes next."""

    @classmethod
    def of(cls, x_THD: Tensor, lines: int, longest: int, read: int) -> Tiles:
        """`read`: elements of 16 bits that a line reads."""
        of_line = cdiv(longest, 2 * ROWS)
        marks = torch.zeros(lines * of_line * 2 + 1, dtype=torch.int32, device=x_THD.device)
        return cls(lines, of_line, min(lines, max(1, triton_hopper.CACHED // max(1, 2 * read))), marks)

    @property
    def programs(self) -> int:
        return min(self.lines * self.of_line, multiprocessors(self.marks.device))

    @property
    def count(self) -> int:
        return self.marks.shape[0] - 1


def takes(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> bool:
    """Whether the forward kernel can do what is asked."""
    return triton_hopper.takes(q, k, v, sequences, rule)


def takes_gradient(do: Tensor, q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> bool:
    """Whether the kernels of the backward pass can do what is asked."""
    return takes(q, k, v, sequences, rule) and describable(do)


def forward(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> tuple[Tensor, Tensor]:
    """(out, lse in powers of two): q (Tq, Hq, D), k and v (Tk, Hk, D); rows of no sequence are 0 and +inf."""
    (tokens, heads, head), group = q.shape, q.shape[1] // k.shape[1]
    out, lse = (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        torch.empty(tokens, heads, dtype=torch.float32, device=q.device),
    )
    tiles = Tiles.of(q, sequences.count * heads, sequences.longest_query, 2 * sequences.longest_key * head // group)
    several = sequences.longest_key > SPLIT_KEYS
    flags = {"HEAD": head, "GROUP": group, "CAUSAL": rule.causal, "WINDOWED": rule.window > 0}
    tables = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    with on_device(q):
        fill_uncovered(out, lse, sequences.q_start, sequences.q_length, float("inf"))
        run(
            attention_hopper_whole,
            tiles.programs,
            (
                *(_described(q), _described(k), _described(v)),
                *(out, lse, tiles.marks, tiles.marks[-1:]),
                *tables,
                *(tiles.lines, heads, tiles.of_line, tiles.section, rule.window, rule.exponent_factor),
            ),
            warps=4,
            stages=1,
            **flags,
            SEVERAL=several,
            STAGES=FORWARD[head].stages,
            SPLIT=SPLIT_KEYS // BLOCK_KEYS,
            BUFFERS=FORWARD[head].buffers,
        )
        sums = torch.empty(q.shape, dtype=torch.float32, device=q.device) if several else None
        strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2])
        run(
            attention_forward,
            tiles.count,
            (
                *(q, k, v, describe(k, BLOCK_KEYS), describe(v, BLOCK_KEYS), out, lse, sums, None, None),
                *tables,
                *(None, tiles.marks, *strides, 0, tokens * heads, 0, heads, 2 * tiles.of_line),
                *(cdiv(sequences.longest_key, SPLIT_KEYS), rule.window, rule.exponent_factor),
                *(rule.score_factor, rule.cap),
            ),
            warps=4,
            stages=3,
            **flags,
            PADDED=head,
            PACK=1,
            TILE=ROWS,
            SOFTCAP=False,
            DESCRIBED=True,
            PAGED=False,
            ALIGNED=True,
            EXACT=False,
            SEVERAL=several,
            ALONE=False,
            SPLIT=SPLIT_KEYS // BLOCK_KEYS,
        )
    return out, lse


def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sequences: Sequences,
    rule: Rule,
    *,
    depth: Depth | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped like q, k, v and contiguous; rows of no sequence are 0."""
    heads, head = q.shape[1:]
    depth = depth or depth_of(head, sequences.longest_query)
    # Lines of a multiple of 16 bytes, as the tensor memory accelerator wants them. Behind a sequence's end they are
    # read, too: zeros, since 0 times what memory held might not be 0.
    pitch = cdiv(sequences.longest_query, 4) * 4
    statistics = torch.zeros(sequences.count * 2 * heads, pitch, dtype=torch.float32, device=q.device)
    tables = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    with on_device(q):
        tiles = cdiv(sequences.longest_query, DELTA_ROWS)
        run(
            attention_delta,
            sequences.count * heads * tiles,
            (out, do, lse, statistics, *tables[:2], heads, tiles, pitch, *do.stride()[:2]),
            warps=4,
            stages=1,
            ROWS=DELTA_ROWS,
            HEAD=head,
            PADDED=head,
            STEPS=head.bit_length() - 1,
            ALIGNED=aligned(out, do),
        )
        given = (q, k, v, do, statistics, pitch, tables, sequences, rule, depth)
        dq = _dq(*given)
        dk, dv = _dk_dv(*given)
    return dq, dk, dv


def _dq(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    statistics: Tensor,
    pitch: int,
    tables: tuple[Tensor, ...],
    sequences: Sequences,
    rule: Rule,
    depth: Depth,
) -> Tensor:
    (_, heads, head), group = q.shape, q.shape[1] // k.shape[1]
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tiles = Tiles.of(q, sequences.count * heads, sequences.longest_query, 2 * sequences.longest_key * head // group)
    flags = {"HEAD": head, "GROUP": group, "CAUSAL": rule.causal, "WINDOWED": rule.window > 0}
    factors = (rule.window, rule.exponent_factor, rule.gradient_factor)
    fill_uncovered(dq, dq, sequences.q_start, sequences.q_length, 0.0)
    run(
        attention_dq_hopper,
        tiles.programs,
        (
            *(_described(q), _described(do), _described(k), _described(v)),
            *(statistics, dq, tiles.marks, tiles.marks[-1:]),
            *tables,
            *(pitch, tiles.lines, heads, tiles.of_line, tiles.section, *factors),
        ),
        warps=4,
        stages=1,
        **flags,
        STAGES=depth.stages,
        BUFFERS=depth.buffers,
    )
    _again(attention_dq_marked, tiles, (q, k, v, do, statistics), (dq,), tables, pitch, heads, factors, flags)
    return dq


def _dk_dv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    statistics: Tensor,
    pitch: int,
    tables: tuple[Tensor, ...],
    sequences: Sequences,
    rule: Rule,
    depth: Depth,
) -> tuple[Tensor, Tensor]:
    (_, heads, head), key_heads = q.shape, k.shape[1]
    group = heads // key_heads
    dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    read = 2 * sequences.longest_query * head * group
    tiles = Tiles.of(k, sequences.count * key_heads, sequences.longest_key, read)
    flags = {"HEAD": head, "GROUP": group, "CAUSAL": rule.causal, "WINDOWED": rule.window > 0}
    factors = (rule.window, rule.exponent_factor, rule.gradient_factor)
    fill_uncovered(dk, dv, sequences.k_start, sequences.k_length, 0.0)
    lines = TensorDescriptor(statistics, list(statistics.shape), [pitch, 1], [1, ROWS], _layout(1, ROWS, torch.float32))
    run(
        attention_dk_dv_hopper,
        tiles.programs,
        (
            *(_described(q), _described(do), _described(k), _described(v), lines),
            *(dk, dv, tiles.marks, tiles.marks[-1:]),
            *tables,
            *(tiles.lines, heads, tiles.of_line, tiles.section, *factors),
        ),
        warps=4,
        stages=1,
        **flags,
        STAGES=depth.stages,
        BUFFERS=depth.buffers,
    )
    _again(attention_dk_dv_marked, tiles, (q, k, v, do, statistics), (dk, dv), tables, pitch, heads, factors, flags)
    return dk, dv


def _again(
    kernel: Any,
    tiles: Tiles,
    read: tuple[Tensor, ...],
    written: tuple[Tensor, ...],
    tables: tuple[Tensor, ...],
    pitch: int,
    heads: int,
    factors: tuple[float, ...],
    flags: dict[str, Any],
) -> None:
    """Marked tiles once more, with care."""
    strides = [x.stride(0) for x in read[:4]]
    rest = (*strides, pitch, heads, tiles.count, 2 * tiles.of_line, *factors)
    run(
        kernel,
        cdiv(tiles.count, MARKS.value),
        (*read, tiles.marks, *written, *tables, *rest),
        warps=4,
        stages=1,
        **flags,
    )


def fill_uncovered(first: Tensor, second: Tensor, start: Tensor, length: Tensor, value: float) -> None:
    """Zeros into the rows of no sequence, and `value` into those of the second tensor."""
    tokens = first.shape[0]
    widths = (first[0].numel(), second[0].numel()) if tokens else (0, 0)
    run(
        attention_uncovered,
        cdiv(tokens, COVERED_ROWS),
        (first, second, start, length, tokens, start.shape[0], *widths),
        warps=4,
        stages=1,
        SECOND=value,
        ROWS=COVERED_ROWS,
    )


def _described(x_THD: Tensor) -> TensorDescriptor:
    tokens, heads, head = x_THD.shape
    return TensorDescriptor(
        x_THD, [tokens, heads * head], [x_THD.stride(0), 1], [ROWS, head], _layout(ROWS, head, x_THD.dtype)
    )


def _layout(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([rows, columns], _ELEMENTS[dtype])
