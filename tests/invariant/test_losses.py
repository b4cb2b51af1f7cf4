"""Losses and gates that torch has whole: a row's loss and gradient beside any others, and values near float64's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from samebits.invariant import InvariantError, invariant_mode
from samebits.numerics.bits import same_bits
from samebits.numerics.recipes import make

F = nn.functional
X, T = (torch.from_numpy(make("normal", (33, 240), seed)) for seed in (1, 2))
Loss = Callable[[Tensor, Tensor, str], Tensor]
LOSSES: dict[str, Loss] = {
    "mse": lambda x, t, reduction: F.mse_loss(x, t, reduction=reduction),
    "binary cross-entropy": lambda x, t, reduction: F.binary_cross_entropy_with_logits(
        x, t.sigmoid(), reduction=reduction
    ),
    "glu": lambda x, t, reduction: F.glu(x, -1) if reduction == "none" else F.glu(x, -1).sum(),
}
FORMATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def driven(loss: Loss, x: Tensor, t: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    y = loss(leaf, t, reduction)
    (gradient,) = torch.autograd.grad(y.sum(), leaf)
    return y.detach(), gradient


@FORMATS
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_row_keeps_its_loss_and_its_gradient(loss: Loss, dtype: torch.dtype) -> None:
    x, t = X.to(dtype), T.to(dtype)
    with invariant_mode():
        losses, gradients = driven(loss, x, t, "none")
        summed = driven(loss, x, t, "sum")[1]
        for rows in (slice(7, 8), slice(0, 3), slice(9, 22)):
            part = driven(loss, x[rows].clone(), t[rows].clone(), "none")
            assert same_bits(part[0], losses[rows]) and same_bits(part[1], gradients[rows])
            assert same_bits(part[1], summed[rows]), "a sum hands its gradient on to every row alike"


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_values_are_near_those_of_float64(loss: Loss, reduction: str) -> None:
    with invariant_mode():
        found = driven(loss, X, T, reduction)
    exact = driven(loss, X.double(), T.double(), reduction)
    # A chain over all elements: each term and each sum rounds.
    bound = 2.0**-24 * (8 if reduction == "none" else X.numel() + 8)
    magnitude = driven(lambda x, t, _: loss(x, t, "none").abs(), X.double(), T.double(), "none")[0].sum()
    assert float((found[0] - exact[0]).abs().max()) <= bound * float(magnitude)
    torch.testing.assert_close(found[1].double(), exact[1], rtol=2.0**-20, atol=2.0**-20 * float(exact[1].abs().max()))


def test_weights_of_losses_are_refused() -> None:
    with invariant_mode(), pytest.raises(InvariantError, match="multiply the losses by them"):
        F.binary_cross_entropy_with_logits(X, T.sigmoid(), weight=T)
