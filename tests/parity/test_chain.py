"""The chain gate on the CPU: thousands of tokens through all operators, no bit differs; every fault is caught."""

from __future__ import annotations

import pytest
import torch

from samebits.nn.strategy import Operators
from samebits.ops.accumulation import linear_into, rmsnorm_into, selected_logprob_into
from samebits.ops.logprob import selected_logprob
from samebits.ops.matmul import linear
from samebits.ops.rmsnorm import rmsnorm
from samebits.parity.faults import FAULTS
from samebits.parity.gate import PROMISES, gate, judge
from samebits.records.report import Verdict


@pytest.mark.parametrize("promise", PROMISES)
def test_the_chain_keeps_its_bits(promise: str) -> None:
    """More than 4,096 tokens, two formats; three seeds are for the command and the long suite."""
    (finding,) = gate(promises=[promise], seeds=(1,), faults=FAULTS)
    assert finding.verdict is Verdict.HOLDS, finding.detail
    assert "4320 tokens" in finding.detail and finding.cases > 500
    assert finding.faults_caught == finding.faults_planted >= 1


def test_every_operator_has_a_planted_fault() -> None:
    """But those that the chain does not reach: it begins behind the embedding, and asks for logprobs alone."""
    broken = {
        name
        for _, operators in FAULTS.values()
        for name in Operators.__slots__
        if getattr(operators, name) is not getattr(Operators(), name)
    }
    assert broken == set(Operators.__slots__) - {"embedding", "lm_head", "logprob_of_logits"}


def test_a_difference_is_named() -> None:
    """Which sequence, which element, both values."""
    name = "swiglu: another sigmoid for many rows"
    finding = judge("batch", backend="cpu", formats=("float32",), seeds=(1,), sequences=16, operators=FAULTS[name][1])
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert finding.detail.startswith("float32 seed 1, batches of 1 against one packed batch: logprobs of sequence 0: ")


def test_an_unknown_promise_is_one_line() -> None:
    with pytest.raises(ValueError, match="the chain is not judged by 'bath'; did you mean 'batch'"):
        gate(promises=["bath"])


def test_gradients_that_go_on_are_those_of_autograd() -> None:
    """In float32 a sum from zero is the gradient that autograd returns; a second pass goes on from it."""
    torch.manual_seed(0)
    x, weight, scale = torch.randn(2, 9, 40), torch.randn(300, 40), torch.randn(40)
    ids, upstream = torch.randint(300, (2, 9)), torch.randn(2, 9)

    def loss(into: bool, sums: dict[str, torch.Tensor], given: list[torch.Tensor]) -> torch.Tensor:
        hidden, square, head, norm = given
        if into:
            normed = rmsnorm_into(linear_into(hidden, square, sums["square"]), norm, sums["norm"])
            return (selected_logprob_into(normed, head, ids, sums["head"]) * upstream).sum()
        normed = rmsnorm(linear(hidden, square), norm)
        assert isinstance(normed, torch.Tensor)
        return (selected_logprob(normed, head, ids) * upstream).sum()

    inputs = [x, torch.randn(40, 40), weight, scale]
    leaves = [each.clone().requires_grad_() for each in inputs]
    expected = torch.autograd.grad(loss(False, {}, leaves), leaves)
    sums = {"square": torch.zeros(40, 40), "head": torch.zeros(300, 40), "norm": torch.zeros(40)}
    hidden = x.clone().requires_grad_()
    (dx,) = torch.autograd.grad(loss(True, sums, [hidden, *inputs[1:]]), hidden)
    assert torch.equal(dx, expected[0])
    for name, gradient in zip(("square", "head", "norm"), expected[1:], strict=True):
        assert torch.equal(sums[name], gradient), name
