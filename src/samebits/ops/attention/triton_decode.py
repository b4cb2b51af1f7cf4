"""Launches of attention of one query at a time, by Gluon for Hopper: which calls it takes, descriptors, the grid.

Decides speed alone: triton_kernel.py chooses between this and the kernel by Triton, whose bits are the same, and merges
the states of splits. The same launch, begun before the kernel before it has ended, is infer/hopper_step's."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, Final

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.ops._triton.device import missing, multiprocessors
from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Rule, Sequences
from samebits.ops.attention.triton_blocks import aligned, describable
from samebits.ops.attention.triton_decode_kernel import attention_of_one_query
from samebits.ops.attention.triton_decode_places import WIDE
from samebits.ops.attention.triton_decode_results import ROWS
from samebits.ops.attention.triton_hopper import layout_of

HEAD_SIZES: Final = (64, 128)
MOST_GROUPED: Final = 16
"""Query heads of a key head: columns of a product."""
MOST_QUERIES: Final = 4
"""Of a sequence, each of which reads all keys; and that alone where there are multiprocessors to spare."""
WARPS: Final = 4


@dataclass(frozen=True, slots=True)
class Results:
    """What a launch writes: results, or states of splits."""

    out: Tensor
    lse: Tensor
    states: tuple[Tensor | None, ...]
    """Sums of values, of weights, and maxima; three times None where there is one split."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch of `attention_of_one_query`."""

    programs: int
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


def takes(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> bool:
    """Whether this kernel can do what is asked."""
    return (
        q.is_cuda
        and missing(q.device) is None
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[2] in HEAD_SIZES
        and q.shape[1] // k.shape[1] <= MOST_GROUPED
        and sequences.longest_query > 0
        and sequences.longest_key > 0
        and rule.softcap == 0
        and aligned(q)
        and describable(k, v)
    )


def pays(q: Tensor, group: int, sequences: Sequences, splits: int) -> bool:
    """Whether there are so few queries that this kernel is faster than the one by Triton."""
    if sequences.longest_query <= 1 or not q.is_cuda:
        return sequences.longest_query == 1
    programs = sequences.count * sequences.longest_query * (q.shape[1] // group) * splits
    return sequences.longest_query <= MOST_QUERIES and programs <= multiprocessors(q.device)


def forward(q: Tensor, k: Tensor, v: Tensor, results: Results, sequences: Sequences, rule: Rule) -> None:
    """Writes all of `results`; rows of no sequence are 0 and +inf."""
    made = prepared(q, k, v, results, sequences, rule)
    run(attention_of_one_query, made.programs, made.arguments, warps=WARPS, stages=1, **made.constants)


def prepared(
    q: Tensor, k: Tensor, v: Tensor, results: Results, sequences: Sequences, rule: Rule, positions: Tensor | None = None
) -> Prepared:
    """`positions`: a kernel before may still run, every row is some sequence's one query, and here are their positions
    (N), which are read in the place of lengths before the wait for that kernel."""
    (tokens, heads, head), key_heads = q.shape, k.shape[1]
    pack, splits, waits = heads // key_heads, cdiv(sequences.longest_key, SPLIT_KEYS), positions is not None
    lines = sequences.count * sequences.longest_query * key_heads * splits
    halves, many = head // WIDE.value, multiprocessors(q.device)
    # Where multiprocessors are left, each half of the values has one: it reads all keys and half as many values.
    parts = halves if lines * halves <= many else 1
    attending = lines * parts
    # Two programs on a multiprocessor where there are so many.
    few = attending <= many
    columns, pages = max(8, next_power_of_2(pack)), sequences.pages
    step, stages = 4 if few and columns == 8 else 2, stages_of(halves + halves // parts, columns, few)
    page = BLOCK_KEYS if pages is None else gcd(sequences.page_size, BLOCK_KEYS)
    tables = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    arguments = (
        *(described(each, page) for each in (k, v)),
        *(q, results.out, results.lse, *results.states),
        *((positions, *[None] * 4) if waits else (None, *tables)),
        *(pages, *q.stride()[:2], 0 if pages is None else pages.stride(0), tokens * heads),
        *(attending, tokens, sequences.count, key_heads, sequences.longest_query, splits),
        *(rule.window, rule.exponent_factor),
    )
    constants = {
        "HALVES": halves,
        "OWN": halves // parts,
        "PACK": pack,
        "HEADS": columns,
        "PAGE": page,
        "PAGE_SIZE": sequences.page_size if pages is not None else 0,
        "STAGES": stages,
        "STEP": step,
        "TURNS": cdiv(stages, step),
        "SPLIT": SPLIT_KEYS // BLOCK_KEYS,
        "ALONE": splits > 1,
        "CAUSAL": rule.causal,
        "WINDOWED": rule.window > 0,
        "WAITS": waits,
        "maxnreg": 112 if few else 80,
    }
    # Behind them those that look for rows of no sequence.
    programs = attending if waits else attending + cdiv(tokens, ROWS.value)
    return Prepared(programs, arguments, constants)


def stages_of(halves: int, columns: int, few: bool) -> int:
    """Blocks on their way, of so many halves of keys and values, that fit into shared memory beside queries, weights
    and what threads hand each other."""
    if few:
        return (24 if columns <= 16 else 20) // halves
    return (12 if columns <= 8 else 8) // halves


def described(x_THD: Tensor, rows: int) -> TensorDescriptor:
    """So many rows of half a head at a time."""
    tokens, heads, head = x_THD.shape
    block, layout = [rows, WIDE.value], layout_of(rows, WIDE.value, x_THD.dtype)
    return TensorDescriptor(x_THD, [tokens, heads * head], [x_THD.stride(0), 1], block, layout)
