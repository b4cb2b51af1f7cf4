"""Matrix products as samebits chains: mm, addmm, bmm, baddbmm, mv, dot, grouped; each one chain over k an output.

Speaks aten's argument lists. A matrix that is added is added after the product is rounded; a bias before."""

from __future__ import annotations

import torch
from torch import Tensor

import samebits.ops.grouped_matmul
import samebits.ops.matmul  # noqa: F401  registers the products
from samebits.invariant.refused import RefusedError
from samebits.ops.arguments import BACKEND_OF_DEVICE, DTYPES, short
from samebits.ops.registering import call


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
    with torch.no_grad():  # below autograd already: said so, it goes to the kernel without torch's dispatcher
        y_MN: Tensor = call("gemm", a_MK, b_KN, bias_N, backend)
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
    """A product a batch, all in one launch: the grouped product has matmul's own order."""
    backend, (B, M, K) = _check_groups(a_BMK, b_BKN), a_BMK.shape
    if not B * M:
        return a_BMK.new_empty(B, M, b_BKN.shape[2])
    ends = torch.arange(M, B * M + 1, M, device=a_BMK.device)
    y: Tensor = torch.ops.samebits.grouped_gemm(a_BMK.reshape(B * M, K), b_BKN, None, ends, backend)
    return y.view(B, M, b_BKN.shape[2])


def baddbmm(added: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus(added, bmm(a, b), beta, alpha)


def mv(a_MK: Tensor, x_K: Tensor) -> Tensor:
    return _gemm(a_MK, x_K.unsqueeze(1)).squeeze(1)


def addmv(added: Tensor, a_MK: Tensor, x_K: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _plus(added, mv(a_MK, x_K), beta, alpha)


def dot(a_K: Tensor, b_K: Tensor) -> Tensor:
    return _gemm(a_K.unsqueeze(0), b_K.unsqueeze(1)).reshape(())


def _check_groups(a: Tensor, b: Tensor) -> str:
    """The backend of both factors of a grouped product."""
    if b.dtype != a.dtype:
        raise RefusedError(f"its factors are {short(a.dtype)} and {short(b.dtype)}; convert one of them")
    return backend_of(a)


def grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """A product a group, such as an expert's: of rows of a, of columns of b, or of the axis that is summed.

    `offs` are the groups' ends. Each output is the chain that `mm` has for its group alone."""
    if bias is not None or out_dtype not in (None, a.dtype):
        raise RefusedError("a grouped product with bias or out_dtype is not offered; add the bias after it")
    if offs is None:
        return bmm(a, b)
    backend = _check_groups(a, b)
    y: Tensor
    if a.dim() == 2 and b.dim() == 3:
        y = torch.ops.samebits.grouped_gemm(a, b, None, offs, backend)
    elif a.dim() == 3:
        # Columns of b are rows of its transpose, and a product of two numbers has no order.
        y = torch.ops.samebits.grouped_gemm(b.T, a.transpose(1, 2), None, offs, backend).T.contiguous()
    else:
        y = torch.ops.samebits.grouped_gemm_dweight(a.T, b, None, offs, backend)
    return y


def resume_grouped_mm(accumulator: Tensor, a: Tensor, b: Tensor, offs: Tensor, *_: object) -> None:
    """accumulator (groups, M, N), contiguous <- a weight gradient's chains resumed: tokens are the summed axis."""
    torch.ops.samebits.grouped_gemm_accumulate_(accumulator, a.T, b, None, offs, _check_groups(a, b))
