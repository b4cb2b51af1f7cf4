"""What somebody else's loss of a token may lose beyond ours: V exponentials in any order, a gradient through a maximum.

Bounds of the log-probability and of cross-entropy are derived for our blocks of the vocabulary. Another order of that
sum is as good. And a formula that subtracts the largest logit, differentiated as it is written, sends that logit
g - g sum(p): nothing but the rounding of a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded


def is_token_loss(arguments: Arguments) -> bool:
    """Whether rows of hidden states, a weight a token and one token a row go in."""
    return list(arguments)[:2] == ["hidden", "weight"] and [
        value.is_floating_point() for value in arguments.values()
    ] == [True, True, False]


def with_any_formula(
    exact: Mapping[str, Bounded], arguments: Arguments, cotangent: Tensor, error: Callable[[int], float]
) -> dict[str, Bounded]:
    """The same values with what any order, and a gradient through the maximum, may miss of them besides."""
    hidden_MK, weight_VK, ids = arguments.values()
    hidden_MK, weight_VK = hidden_MK.double(), weight_VK.double()
    logits_MV = hidden_MK @ weight_VK.T
    of_sum = error(weight_VK.shape[0])
    # Which logit is the largest may be decided by rounding.
    of_logits_MV = error(weight_VK.shape[1]) * (hidden_MK.abs() @ weight_VK.abs().T)
    least_M = (logits_MV - of_logits_MV).amax(-1, keepdim=True)
    perhaps_largest_MV = (logits_MV + of_logits_MV >= least_M).double()
    # The quotient e / sum misses that of its sum; the two terms at the maximum cancel, each as large as g.
    of_dz_MV = cotangent.double().abs()[:, None] * of_sum * (logits_MV.softmax(-1) + 2 * perhaps_largest_MV)
    of_dz_MV = torch.where((ids < 0)[:, None], 0.0, of_dz_MV)
    more = {
        "output": torch.full_like(exact["output"].allowed, of_sum),
        "hidden": of_dz_MV @ weight_VK.abs(),
        "weight": of_dz_MV.T @ hidden_MK.abs(),
    }
    return {name: Bounded(exact=each.exact, allowed=each.allowed + more[name]) for name, each in exact.items()}
