"""Cross-entropy, said plainly, on top of the log-probabilities of operator `logprob`, which say the order of a row.

loss[m] = 0 - logprob[m]; ignored rows give +0. The total is a chain over rows, ascending from +0: acc + loss. The mean
is total * fl(1 / denominator); the denominator is the number of rows that are not ignored, unless it is given.
Gradient of rows (reduction none): that of log-probabilities under -upstream. Of a total or a mean: every row carries
g = -1 or -fl(1 / denominator) into dz; the chains of dz weight and dz hidden end in float32, and what flows back from
above multiplies them once, before they are rounded: gradient = round(upstream * sum)."""

from __future__ import annotations

from torch import Tensor

from samebits.ops.logprob.reference import logprob64
from samebits.ops.registering import call


def total_and_mean(loss_M: Tensor, factor: Tensor, backend: str) -> Tensor:
    """The chain over rows, times the factor. Ignored rows hold +0, which changes no sum that began at +0."""
    ones = loss_M.new_ones(1, loss_M.shape[0])
    total: Tensor = call("gemm", ones, loss_M[:, None], None, backend)
    return total.reshape(()) * factor


def factor_of(targets_M: Tensor, ignore_index: int, reduction: str, denominator: float | None, like: Tensor) -> Tensor:
    """1, or fl(1 / denominator): a number on the device, so that nothing waits for it."""
    one = like.new_ones(())
    if reduction == "sum":
        return one
    if denominator is None:
        return one / (targets_M != ignore_index).sum().to(like.dtype)
    return one / like.new_full((), denominator)


def cross_entropy64(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """loss[m] = log sum_v exp z[m,v] - z[m,t], z[m,v] = sum_k hidden[m,k] weight[v,k], in float64; 0 if ignored."""
    return 0.0 - logprob64(hidden, weight, targets)
