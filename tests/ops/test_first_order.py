"""Gradients that nobody wrote are refused in one line: torch would take them for zero."""

from __future__ import annotations

import pytest
import torch
from tests.ops.test_every_operator import DIFFERENTIABLE, Subject
from torch import Tensor

from samebits.ops import first_order, registering

TWICE = {"matmul", "linear", "lm_head", "rope"}
"""Operators whose gradients have gradients."""


def doubly(subject: Subject) -> list[Tensor | None]:
    """What a loss that is made of first gradients says of the arguments, and of what came from above."""
    wanted = subject.gradient_arguments()
    made = subject.spec.make(subject.shapes()[0], "normal", "float32", 3)
    given = {name: value.detach().clone().requires_grad_(name in wanted) for name, value in made.items()}
    leaves = [given[name] for name in wanted]
    y = subject.function(*given.values())
    above = torch.full_like(y, 0.5).requires_grad_()
    first = torch.autograd.grad(y, leaves, above, create_graph=True)
    return list(torch.autograd.grad(sum(each.square().sum() for each in first), [*leaves, above], allow_unused=True))


@pytest.mark.parametrize("subject", DIFFERENTIABLE, ids=lambda each: each.name)
def test_a_second_derivative_is_there_or_refused(subject: Subject) -> None:
    if subject.name in TWICE:
        *_, above = doubly(subject)
        assert above is not None and above.abs().sum() > 0
    else:
        with pytest.raises(
            NotImplementedError, match=r"samebits::\w+: has no gradient; allowed: .* first order"
        ) as why:
            doubly(subject)
        assert "\n" not in str(why.value)


def test_every_operator_has_a_gradient_or_a_refusal() -> None:
    """But for those that write into an argument, whose names end so."""
    writing = [name for name in registering._runs if getattr(torch.ops.samebits, name).default._schema.is_mutable]
    assert writing and writing == [name for name in registering._runs if name.endswith("_")]
    others = [name for name in registering._runs if name not in writing]
    assert len(others) > 25 and all(map(first_order.has_gradient, others))


def test_what_torch_does_of_itself_is_not_seen_as_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an operator that nobody refused; its gradient is nothing, with a warning."""
    monkeypatch.setattr(registering, "_runs", {})
    monkeypatch.setattr(registering, "_observables", {})
    registering.register("doubled_in_a_test(Tensor x) -> Tensor", run=lambda x: x.detach() * 2, fake=torch.empty_like)
    assert not first_order.has_gradient("doubled_in_a_test")
    x = torch.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="an autograd kernel was not registered"):
        (x + torch.ops.samebits.doubled_in_a_test(x)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 1.0, 1.0]
    first_order.refuse()
    with pytest.raises(NotImplementedError, match="samebits::doubled_in_a_test: has no gradient"):
        (x + torch.ops.samebits.doubled_in_a_test(x)).sum().backward()
