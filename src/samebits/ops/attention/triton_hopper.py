"""Launches of attention's forward pass for Hopper, by Gluon: which calls it takes, descriptors, the grid.

Decides speed alone: triton_kernel.py chooses between this and the kernel by Triton, whose bits are the same. Tiles in
which something is not finite are marked, and done again by that kernel, which knows which keys a row does not see."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.ops._triton.device import missing, multiprocessors
from samebits.ops._triton.launch import run
from samebits.ops._triton.sizes import cdiv
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Rule, Sequences
from samebits.ops.attention.triton_blocks import describable
from samebits.ops.attention.triton_hopper_forward import attention_hopper

HEADS = (64, 128)
QUERIES = 64
"""Of a group; a tile has two groups."""
STAGES = {64: 4, 128: 3}
"""Blocks of keys and of values on their way, by the size of a head."""
CACHED = 2**24
"""Bytes of keys and values that programs work on at a time: a third of the second cache."""
_ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def takes(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> bool:
    """Whether this kernel can do what is asked."""
    return (
        q.is_cuda
        and missing(q.device) is None
        and q.dtype in _ELEMENTS
        and q.shape[2] in HEADS
        and sequences.pages is None
        and rule.softcap == 0
        and describable(q, k, v)
    )


def forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sequences: Sequences, rule: Rule) -> Tensor:
    """Computes `out` and `lse` in place; marks, a number for every 64 queries of a line, those to do again."""
    _, heads, head = q.shape
    tiles = cdiv(sequences.longest_query, 2 * QUERIES)
    lines = sequences.count * heads
    group = heads // k.shape[1]
    bytes_of_a_line = 2 * sequences.longest_key * head * q.element_size()
    section = min(lines, max(1, CACHED // max(1, bytes_of_a_line)) * group)
    # The last number counts the tiles that are taken.
    redo = torch.zeros(lines * tiles * 2 + 1, dtype=torch.int32, device=q.device)
    arguments = (
        _described(q, QUERIES),
        _described(k, BLOCK_KEYS),
        _described(v, BLOCK_KEYS),
        out,
        lse,
        redo,
        redo[-1:],
        sequences.q_start,
        sequences.q_length,
        sequences.k_start,
        sequences.k_length,
        lines,
        heads,
        tiles,
        section,
        rule.window,
        rule.exponent_factor,
    )
    run(
        attention_hopper,
        min(lines * tiles, multiprocessors(q.device)),
        arguments,
        warps=4,
        stages=1,
        HEAD=head,
        GROUP=group,
        CAUSAL=rule.causal,
        WINDOWED=rule.window > 0,
        SEVERAL=sequences.longest_key > SPLIT_KEYS,
        STAGES=STAGES[head],
        SPLIT=SPLIT_KEYS // BLOCK_KEYS,
    )
    return redo


def _described(x_THD: Tensor, block: int) -> TensorDescriptor:
    tokens, heads, head = x_THD.shape
    layout = _layout(block, head, x_THD.dtype)
    return TensorDescriptor(x_THD, [tokens, heads * head], [x_THD.stride(0), 1], [block, head], layout)


@cache
def _layout(block: int, head: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([block, head], _ELEMENTS[dtype])
