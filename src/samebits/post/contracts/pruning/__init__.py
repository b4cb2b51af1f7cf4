"""One weight pruned by WANDA, as its contract asks for it: a matrix, what flows into it, and the share that goes."""

from __future__ import annotations

from torch import Tensor

from samebits.post.sparsity import pruned


def pruned_weight(weight: Tensor, squares: Tensor, share: Tensor) -> Tensor:
    """(N, K): of each row the least scores are zero; `share` is one number."""
    return pruned(weight, sparsity=float(share[0]), squares=squares)
