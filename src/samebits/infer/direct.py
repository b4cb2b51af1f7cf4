"""The CPU's kernels without their doors, for batches that the engine made itself: nothing in them can be wrong.

A decode step is three hundred small calls, and a door's checks cost as much as its kernel there. The same kernels, so
the same bits. Knows no request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor

from samebits.infer.pages import LayerCache
from samebits.model.model import Model, Operators
from samebits.numerics.exactly import inverse_root
from samebits.ops.attention import cpu_kernel as attention_kernel
from samebits.ops.attention.forms import Rule
from samebits.ops.matmul.cpu_kernel import gemm
from samebits.ops.rmsnorm import cpu_kernel as rmsnorm_kernel
from samebits.ops.swiglu import cpu_kernel as swiglu_kernel


def _linear(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    # A rank may have none of the heads.
    return gemm(x_MK, weight_NK.T) if len(weight_NK) else x_MK.new_empty(len(x_MK), 0)


def _rmsnorm(x: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    rows_MH = x.reshape(-1, x.shape[-1]).contiguous()
    return rmsnorm_kernel.forward(rows_MH, weight_H, eps, None)[0].view(x.shape)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return swiglu_kernel.forward(gate.contiguous(), up.contiguous())


@cache
def rule_of(head: int) -> Rule:
    return Rule(causal=True, window=0, scale=inverse_root(head), softcap=0.0)


def _attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Sequence[int], cache: LayerCache) -> Tensor:
    cache.append_spread(k, v, cache.spread())
    out, _ = attention_kernel.forward(q, cache.k_flat, cache.v_flat, cache.sequences, rule_of(q.shape[-1]))
    return out


DIRECT: Final = Operators(linear=_linear, rmsnorm=_rmsnorm, swiglu=_swiglu, attention=_attention)


def may_go_direct(model: Model) -> bool:
    """On the CPU, and with nobody's operators in place of ours."""
    return model.device == torch.device("cpu") and model.operators == Operators()
