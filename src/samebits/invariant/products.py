"""Matrix products as samebits chains: mm, addmm, bmm, baddbmm, mv, dot, each one chain over k an output.

Speaks aten's argument lists. A matrix that is added is added after the product is rounded; a bias before."""

from __future__ import annotations

import torch
from torch import Tensor

import samebits.ops.matmul  # noqa: F401  registers the products
from samebits.invariant.refused import RefusedError
from samebits.ops.arguments import BACKEND_OF_DEVICE, DTYPES, short


def backend_of(x: Tensor) -> str:
    """The backend of a tensor's device; what samebits has no kernel for is refused."""
    if x.device.type not in BACKEND_OF_DEVICE:
        raise RefusedError(f"samebits has no backend for {x.device.type}; move the model to cpu or cuda")
    if x.dtype not in DTYPES:
        raise RefusedError(f"samebits computes {', '.join(map(short, DTYPES))}, not {short(x.dtype)}; convert it")
    return BACKEND_OF_DEVICE[x.device.type]


def _gemm(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None) -> Tensor:
    backend = backend_of(a_MK)
    if b_KN.dtype != a_MK.dtype or (bias_N is not None and bias_N.dtype != a_MK.dtype):
        raise RefusedError(f"its factors are {short(a_MK.dtype)} and {short(b_KN.dtype)}; convert one of them")
    y_MN: Tensor = torch.ops.samebits.gemm(a_MK, b_KN, bias_N, backend)
    return y_MN


def mm(a: Tensor, b: Tensor) -> Tensor:
    return _gemm(a, b)


def resume_mm(accumulator: Tensor, a: Tensor, b: Tensor) -> None:
    """accumulator (M, N), contiguous or the transpose of what is <- the chains of a b, resumed from it."""
    if not accumulator.is_contiguous():
        accumulator, a, b = accumulator.T, b.T, a.T
    torch.ops.samebits.gemm_accumulate_(accumulator, a, b, backend_of(a))


def _plus(added: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """beta * added + alpha * product, every step rounded: the same for every element wherever it lies."""
    scaled = product if alpha == 1 else product * alpha
    return scaled if beta == 0 else scaled + (added if beta == 1 else added * beta)


def addmm(added: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    is_bias = added.shape[-1:] == b.shape[-1:] and added.numel() == b.shape[-1]
    if beta == alpha == 1 and is_bias and added.dtype == a.dtype:
        return _gemm(a, b, added.reshape(-1))
    return _plus(added, _gemm(a, b), beta, alpha)


def bmm(a_BMK: Tensor, b_BKN: Tensor) -> Tensor:
    y_BMN = a_BMK.new_empty(a_BMK.shape[0], a_BMK.shape[1], b_BKN.shape[2])
    for y_MN, a_MK, b_KN in zip(y_BMN, a_BMK, b_BKN, strict=True):
        y_MN.copy_(_gemm(a_MK, b_KN))
    return y_BMN


def baddbmm(added: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus(added, bmm(a, b), beta, alpha)


def mv(a_MK: Tensor, x_K: Tensor) -> Tensor:
    return _gemm(a_MK, x_K.unsqueeze(1)).squeeze(1)


def addmv(added: Tensor, a_MK: Tensor, x_K: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus(added, mv(a_MK, x_K), beta, alpha)


def dot(a_K: Tensor, b_K: Tensor) -> Tensor:
    return _gemm(a_K.unsqueeze(0), b_K.unsqueeze(1)).reshape(())
