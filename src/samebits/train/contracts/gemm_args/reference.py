"""The same results in float64 with torch's own functions; nothing is written elsewhere, so the count is 0."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from samebits.train.contracts.gemm_args import HEAD


def linear64(x: Tensor, weight: Tensor) -> Tensor:
    """x times weight transposed, and a column of zeros."""
    return _with_zero(x.double() @ weight.double().T)


def accumulate64(x: Tensor, dy: Tensor) -> Tensor:
    """dy transposed times x, and a column of zeros."""
    return _with_zero(dy.double().T @ x.double())


def attention64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention, its gradients where the output flows back, and a column of zeros."""
    with torch.enable_grad():
        given = [each.double().reshape(len(each), -1, HEAD).requires_grad_() for each in (q, k, v)]
        query, key, value = (each.transpose(0, 1) for each in given)
        out = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(0, 1)
        gradients = torch.autograd.grad(out, given, out.detach())
    return _with_zero(torch.cat([each.reshape(len(q), -1) for each in (out.detach(), *gradients)], -1))


def _with_zero(result: Tensor) -> Tensor:
    return torch.cat([result, torch.zeros(len(result), 1, dtype=torch.float64)], -1)
