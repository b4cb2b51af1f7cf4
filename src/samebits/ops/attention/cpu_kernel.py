"""Attention on the CPU: hands strides and pointers to the C++ kernel beside this file."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run
from samebits.ops.attention.forms import Rule, Sequences


class _Description:
    """What the kernel is told besides tensors, as arrays that it reads as structs of the same order.

    The arrays hold addresses of the tables: this object must live as long as the call."""

    def __init__(self, sequences: Sequences, rule: Rule, q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None) -> None:
        pages = None if sequences.pages is None else sequences.pages.contiguous()
        starts_and_lengths = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
        self.tables = [*(table.to(torch.int64).contiguous() for table in starts_and_lengths), pages]
        (tokens, heads, head), pages_row = q.shape, 0 if pages is None else pages.shape[1]
        sizes = (FORMATS[q.dtype], tokens, sequences.count, heads, k.shape[1], head, pages_row, sequences.page_size)
        strides = [stride for x in (q, k, v, q if dout is None else dout) for stride in x.stride()[:2]]
        numbers = (*sizes, rule.causal, rule.window, *strides)
        factors = (rule.softcap, rule.score_factor, rule.cap, rule.exponent_factor, rule.gradient_factor)
        self.arrays = (
            (ctypes.c_int64 * len(numbers))(*numbers),
            (ctypes.c_float * len(factors))(*factors),
            (ctypes.c_void_p * len(self.tables))(*map(pointer, self.tables)),
        )


def _fresh(x_THD: Tensor, lengths: Tensor) -> Tensor:
    """Room for a result: zeros where a row may belong to no sequence.

    torch fills with its own threads, which then wait for more work in a loop, on the cores that the kernel needs."""
    whole = int(lengths.sum()) == x_THD.shape[0]
    return (torch.empty if whole else torch.zeros)(x_THD.shape, dtype=x_THD.dtype)


def forward(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, sequences: Sequences, rule: Rule) -> tuple[Tensor, Tensor]:
    """(out, lse2)."""
    out_THD = _fresh(q_THD, sequences.q_length)
    lse2_TH = torch.full(q_THD.shape[:2], torch.inf, dtype=torch.float32)
    description = _Description(sequences, rule, q_THD, k_THD, v_THD, None)
    tensors = (q_THD, k_THD, v_THD, out_THD, lse2_TH)
    run("attention_forward", "p" * 8, *description.arrays, *map(pointer, tensors))
    return out_THD, lse2_TH


def backward(
    dout_THD: Tensor,
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    out_THD: Tensor,
    lse2_TH: Tensor,
    sequences: Sequences,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv)."""
    dq_THD, dk_THD, dv_THD = (
        _fresh(q_THD, sequences.q_length),
        _fresh(k_THD, sequences.k_length),
        _fresh(v_THD, sequences.k_length),
    )
    description = _Description(sequences, rule, q_THD, k_THD, v_THD, dout_THD)
    tensors = (dout_THD, q_THD, k_THD, v_THD, out_THD, lse2_TH, torch.empty_like(lse2_TH), dq_THD, dk_THD, dv_THD)
    run("attention_backward", "p" * 13, *description.arrays, *map(pointer, tensors))
    return dq_THD, dk_THD, dv_THD
