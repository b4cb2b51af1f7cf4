"""What rounding does to gradients: a case that the forward pass alone does not explain, and one without a gradient."""

from __future__ import annotations

import torch

from samebits.model.contracts.drawn_rounding import DRAWS, Drawn
from samebits.model.contracts.small_model import cut
from samebits.train.contracts.gradflow import gradients
from samebits.train.contracts.gradflow.check import _make
from samebits.train.contracts.gradflow.reference import effect64, gradients64

QUERY = "model.layers.1.self_attn.q_proj.weight"


def test_what_attention_subtracts_is_in_the_bound() -> None:
    arguments = _make((2, 2), "normal", "float32", 463787800)
    exact = gradients64(*arguments.values())
    error = float(cut(gradients(**arguments) - exact)[QUERY].abs().amax())
    there = [gradients64(*arguments.values(), rounding=Drawn(seed)) - exact for seed in range(DRAWS)]
    left_out = max(float(cut(each)[QUERY].abs().amax()) for each in there)
    assert 2 * left_out < error < float(cut(effect64(arguments, exact))[QUERY].amax())


def test_a_gradient_smaller_than_its_rounding_is_zero() -> None:
    arguments = _make((2, 2), "cancelling", "float32", 1114231094)
    exact = gradients64(*arguments.values())
    found, wanted = cut(gradients(**arguments))[QUERY], cut(exact)[QUERY]
    assert not torch.any(found)
    # What cancels is 0 in float64 on one machine and a rounding error on another: torch's own sums decide.
    assert float(wanted.abs().amax()) < float(cut(effect64(arguments, exact))[QUERY].amax())


def test_a_pair_of_zeros_has_a_bound() -> None:
    """An embedding of zeros is turned by its position: the length of such a pair has no gradient, and needs none."""
    arguments = _make((2, 1), "zeros_signed", "float32", 45025863)
    exact = gradients64(*arguments.values())
    allowed = {name: float(each.amax()) for name, each in cut(effect64(arguments, exact)).items()}
    errors = {name: float(each.abs().amax()) for name, each in cut(gradients(**arguments) - exact).items()}
    assert all(errors[name] <= allowed[name] < 1e-4 * float(exact.abs().amax()) for name in errors)
