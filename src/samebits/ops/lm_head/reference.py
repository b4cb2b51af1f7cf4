"""A language model's head, said plainly: the accumulator of the matrix product, before any rounding to a storage dtype.

Order: that of `matmul`'s chain over k, from +0; the logits are the float32 sums themselves. Gradient: dlogits is
rounded once to the storage dtype, then as `linear`. A tied weight's gradient is one chain: the head's rows first,
ascending, then the embedding's positions, ascending, resumed from them; one rounding at the end."""

from __future__ import annotations

from torch import Tensor


def lm_head64(hidden: Tensor, weight: Tensor) -> Tensor:
    """logits[m,v] = sum_k hidden[m,k] weight[v,k], in float64."""
    return hidden.double() @ weight.double().T


def tied_gradient64(hidden: Tensor, dlogits: Tensor, ids: Tensor, dembedding: Tensor) -> Tensor:
    """dW[v,k] = sum_m dlogits[m,v] hidden[m,k] + sum over ids[m] = v of dembedding[m,k], in float64."""
    return (dlogits.double().T @ hidden.double()).index_add(0, ids, dembedding.double())
