"""What rounding may do to logits follows from the bounds of operators: real errors fit, small faults do not."""

from __future__ import annotations

import pytest
import torch

from samebits.model.contracts.drawn_rounding import Drawn
from samebits.model.contracts.model_forward import forward
from samebits.model.contracts.model_forward.check import make
from samebits.model.contracts.model_forward.reference import allowed64, forward64


@pytest.mark.parametrize("recipe", ["normal", "cancelling", "wide"])
def test_real_errors_fit_and_small_faults_do_not(recipe: str) -> None:
    """Planted fault: weights that were kept in bfloat16."""
    given = make((2, 9, 2), recipe, "float32", 1)
    ids, weights = given["ids"], given["weights"]
    exact = forward64(ids, weights)
    allowed = allowed64(ids, weights, exact)
    assert bool(((forward(ids, weights) - exact).abs() <= allowed).all())
    assert float((allowed / exact.abs().amax(-1, keepdim=True)).amax()) < 1e-4
    coarse = forward(ids, weights.bfloat16().float())
    assert bool(((coarse - exact).abs() > allowed).any())


def test_each_result_is_off_by_its_bound() -> None:
    """Up and down, by no more and no less; and other draws have other signs."""
    ones = torch.ones(64, dtype=torch.float64)
    first, second = (Drawn(seed).elements(ones, ones, 3) - 1 for seed in (0, 1))
    assert set(first.abs().tolist()) == {3 * 2.0**-24} and len(set(first.tolist())) == 2
    assert not torch.equal(first, second)
