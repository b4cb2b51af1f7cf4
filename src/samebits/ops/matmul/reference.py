"""The matrix product, said plainly: the definition that every backend is held to.

Order: k ascending; one fused multiply-add a step into a float32 accumulator that starts at +0, or at the caller's.
Rounding: once in every step; the bias is added once in float32; one rounding to the output's dtype at the end.
In float64 the same formulas are plain torch, exact enough to judge the others against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.fma import fma32


def gemm(a_MK: Tensor, b_KN: Tensor, *, bias_N: Tensor | None = None, accumulator_MN: Tensor | None = None) -> Tensor:
    """round(a b + bias), or the accumulator with a b added to it, in place."""
    if a_MK.dtype == torch.float64:
        product = a_MK @ b_KN
        return product if bias_N is None else product + bias_N
    a, b = a_MK.detach().float().cpu().numpy(), b_KN.detach().float().cpu().numpy()
    shape = (a.shape[0], b.shape[1])
    sum_MN = np.zeros(shape, np.float32) if accumulator_MN is None else accumulator_MN.detach().cpu().numpy().copy()
    for k in range(a.shape[1]):
        sum_MN = fma32(np.broadcast_to(a[:, k, None], shape), np.broadcast_to(b[None, k, :], shape), sum_MN)
    result = torch.from_numpy(sum_MN).to(a_MK.device)
    if accumulator_MN is not None:
        return accumulator_MN.copy_(result)
    if bias_N is not None:
        result = result + bias_N.float()
    return result.to(a_MK.dtype)


def matmul64(a: Tensor, b: Tensor) -> Tensor:
    """y[m,n] = sum_k a[m,k] b[k,n], in float64."""
    return a.double() @ b.double()


def linear64(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y[m,n] = sum_k x[m,k] weight[n,k] + bias[n], in float64."""
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()
