"""Launches of the kernels here: `forward` takes and gives what that of ops/attention/triton_kernel.py does.

Decides speed alone. Memory between the steps is a few bytes a row and key."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decode_attention.kernels import decode_scores, decode_values, decode_weights
from samebits.ops._triton.device import multiprocessors, on_device
from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, WEIGHT_LANES, Rule, Sequences
from samebits.ops.attention.triton_blocks import aligned
from samebits.ops.attention.triton_kernel import STATES_AT_ONCE
from samebits.ops.attention.triton_merge import attention_merge
from samebits.ops.attention.triton_uncovered import fill_uncovered

ROWS = 16
NARROW = 16
"""The fewest columns of values that a program sums: the width of a line of 32 bytes."""
STAGES = 5
"""Blocks of values on their way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Between:
    """What one step leaves to the next, for every block of keys of a line and each of its 16 rows."""

    scores: Tensor
    maxima: Tensor
    weights: Tensor
    shrinks: Tensor
    added: Tensor
    raised: Tensor

    @classmethod
    def of(cls, q: Tensor, lines: int, blocks: int) -> Between:
        def memory(*last: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(lines, blocks, ROWS, *last, dtype=dtype, device=q.device)

        return cls(
            scores=memory(BLOCK_KEYS),
            maxima=memory(),
            weights=memory(BLOCK_KEYS, dtype=q.dtype),
            shrinks=memory(),
            added=memory(WEIGHT_LANES),
            raised=memory(),
        )


def pack_of(q: Tensor, k: Tensor, sequences: Sequences) -> int:
    """Heads of a group that share their keys' program: all of them, where their rows fit."""
    group = q.shape[1] // k.shape[1]
    return group if sequences.longest_query * group <= ROWS else 1


def takes(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> bool:
    """Whether these kernels can do what is asked: few queries, in 16 bits, of heads that are a power of two wide."""
    head = q.shape[2]
    return q.dtype != torch.float32 and sequences.longest_query <= ROWS and head == max(16, next_power_of_2(head))


def columns_of(head: int, programs: int, multiprocessors: int) -> int:
    """Of a program that sums values: halved until every multiprocessor has two programs."""
    columns = head
    while columns > NARROW and programs * (head // columns) < 2 * multiprocessors:
        columns //= 2
    return columns


def forward(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> tuple[Tensor, Tensor]:
    """(out, lse in powers of two): q (Tq, Hq, D), k and v (Tk, Hk, D); rows of no sequence are 0 and +inf."""
    tokens, heads, head = q.shape
    pack, group, pages = pack_of(q, k, sequences), heads // k.shape[1], sequences.pages
    lines, blocks = sequences.count * (heads // pack), cdiv(sequences.longest_key, BLOCK_KEYS)
    splits = max(1, cdiv(sequences.longest_key, SPLIT_KEYS))
    several = splits > 1
    columns = columns_of(head, lines * splits, multiprocessors(q.device))
    between = Between.of(q, lines, blocks)
    out = torch.empty(tokens, heads, head, dtype=q.dtype, device=q.device)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    states = [
        torch.empty(splits, *shape, dtype=torch.float32, device=q.device) if several else None
        for shape in (q.shape, q.shape[:2], q.shape[:2])
    ]
    tables = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    pages_row = 0 if pages is None else pages.stride(0)
    seeing = {"CAUSAL": rule.causal, "WINDOWED": rule.window > 0, "PAGED": pages is not None}
    with on_device(q):
        fill_uncovered(out, lse, sequences.q_start, sequences.q_length, float("inf"))
        if blocks:
            run(
                decode_scores,
                lines * blocks,
                (
                    *(q, k, between.scores, between.maxima, *tables, pages),
                    *(*q.stride()[:2], *k.stride()[:2], pages_row),
                    *(sequences.page_size, heads, blocks, rule.window, rule.score_factor, rule.cap),
                ),
                warps=4,
                stages=1,
                HEAD=head,
                PADDED=head,
                GROUP=group,
                PACK=pack,
                SOFTCAP=rule.softcap > 0,
                ALIGNED=aligned(q, k),
                **seeing,
            )
            run(
                decode_weights,
                lines * blocks,
                (
                    *(between.scores, between.maxima, between.weights, between.shrinks, between.added, between.raised),
                    *(sequences.q_length, sequences.k_length, heads, blocks, rule.exponent_factor),
                ),
                warps=1,
                stages=1,
                PACK=pack,
                SPLIT=SPLIT_KEYS // BLOCK_KEYS,
            )
        run(
            decode_values,
            lines * splits * (head // columns),
            (
                *(between.weights, between.shrinks, between.added, between.raised, v),
                *(out, lse, *states, *tables, pages),
                *(*v.stride()[:2], pages_row, tokens * heads, sequences.page_size, heads, blocks),
                *(splits, rule.window, rule.exponent_factor),
            ),
            warps=1 if columns <= 2 * NARROW else 2,
            stages=STAGES,
            HEAD=head,
            COLUMNS=columns,
            STAGES=STAGES,
            GROUP=group,
            PACK=pack,
            ALIGNED=aligned(v),
            SEVERAL=several,
            SPLIT=SPLIT_KEYS // BLOCK_KEYS,
            **seeing,
        )
        if several:
            longest = sequences.longest_query
            run(
                attention_merge,
                sequences.count * longest * heads,
                (out, lse, *states, *tables[:2], tables[3], tokens * heads, heads, longest, rule.exponent_factor),
                warps=1,
                stages=1,
                HEAD=head,
                PADDED=head,
                EXACT=False,
                SPLIT=SPLIT_KEYS // BLOCK_KEYS,
                AT_ONCE=STATES_AT_ONCE,
            )
    return out, lse
