"""Planted faults of kernel calls: two sizes change places, a sequence is counted one too long."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, run
from samebits.ops.attention import cpu_kernel
from samebits.ops.attention.forms import Rule, Sequences
from samebits.train.contracts.gemm_args import accumulate_in_guards, attention_in_guards, linear_in_guards


def _swapped_linear(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    (rows, depth), columns = x_MK.shape, weight_NK.shape[0]
    out, format = torch.empty(rows, columns), FORMATS[x_MK.dtype]
    run(
        "matmul",
        "iiqqqpqqpqqppp",
        format,
        format,
        rows,
        depth,
        columns,
        x_MK.data_ptr(),
        *x_MK.stride(),
        weight_NK.data_ptr(),
        *weight_NK.T.stride(),
        None,
        None,
        out.data_ptr(),
    )
    return out


def _swapped_accumulate(sums_NK: Tensor, dy_NM: Tensor, x_MK: Tensor) -> Tensor:
    (columns, rows), depth, format = dy_NM.shape, x_MK.shape[1], FORMATS[x_MK.dtype]
    run(
        "matmul",
        "iiqqqpqqpqqppp",
        format,
        format,
        columns,
        rows,
        depth,
        dy_NM.data_ptr(),
        *dy_NM.stride(),
        x_MK.data_ptr(),
        *x_MK.stride(),
        None,
        sums_NK.data_ptr(),
        None,
    )
    return sums_NK


class _OneTooLong(torch.autograd.Function):
    """The kernel is told one token more than there are."""

    @staticmethod
    def forward(ctx: object, q_THD: Tensor, k_THD: Tensor, v_THD: Tensor) -> Tensor:
        tokens = len(q_THD) + 1
        start, length = torch.tensor([0]), torch.tensor([tokens])
        told = Sequences(
            q_start=start, q_length=length, k_start=start, k_length=length, longest_query=tokens, longest_key=tokens
        )
        rule = Rule(causal=True, window=0, scale=q_THD.shape[-1] ** -0.5, softcap=0.0)
        return cpu_kernel.forward(q_THD, k_THD, v_THD, told, rule)[0]

    @staticmethod
    def backward(ctx: object, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return dout, dout, dout


def _one_too_long(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor) -> Tensor:
    out: Tensor = _OneTooLong.apply(q_THD, k_THD, v_THD)  # type: ignore[no-untyped-call]
    return out


def swaps_columns_and_depth(x: Tensor, weight: Tensor) -> Tensor:
    """(m, k, n) where the kernel takes (m, n, k)."""
    return linear_in_guards(x, weight, kernel=_swapped_linear)


def swaps_in_the_gradient(x: Tensor, dy: Tensor) -> Tensor:
    """The same in the product that writes into the caller's memory."""
    return accumulate_in_guards(x, dy, kernel=_swapped_accumulate)


def counts_one_token_too_many(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A row behind the last is computed and written."""
    return attention_in_guards(q, k, v, kernel=_one_too_long)
