"""Layer norm under the mode is the operator: several axes, no rows, no width, several dtypes, torch's statistics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from samebits import ops
from samebits.invariant import invariant_mode
from samebits.numerics.bits import same_bits


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SHAPES = {"one axis": (5, 300), "two axes": (5, 3, 100), "one row": (1, 1, 300), "no leading axis": (300,)}


@pytest.mark.parametrize("name", SHAPES)
def test_is_the_operator_over_flat_axes(name: str) -> None:
    """Output and all three gradients."""
    shape = SHAPES[name]
    axes = shape[1:] or shape
    x, weight, bias = (drawn(*each, seed=seed) for seed, each in enumerate((shape, axes, axes)))
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    dy = drawn(*shape, seed=3)
    expected = ops.layernorm(x.reshape(-1, 300), weight.reshape(300), bias.reshape(300)).reshape(shape)
    wanted = [expected, *torch.autograd.grad(expected, leaves, dy)]
    with invariant_mode():
        y = layer_norm(x, axes, weight, bias)
        found = [y, *torch.autograd.grad(y, leaves, dy)]
    assert all(map(same_bits, found, wanted))


def test_several_dtypes_meet_in_float32() -> None:
    """bfloat16 rows with a float32 weight, as torch takes them: nothing is rounded before the end."""
    x, weight, bias = drawn(5, 300).bfloat16(), drawn(300, seed=1), drawn(300, seed=2)
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    wide = ops.layernorm(x.float(), weight, bias)
    wanted = [wide.bfloat16(), *torch.autograd.grad(wide, leaves, torch.ones_like(wide))]
    with invariant_mode():
        y = layer_norm(x, (300,), weight, bias)
        found = [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]
    assert all(map(same_bits, found, wanted))


def test_statistics_that_torch_rounded_are_read_as_they_are() -> None:
    """A forward outside the mode leaves bfloat16 statistics on the CPU: a kernel must not read them as float32."""
    x, weight = drawn(5, 300).bfloat16(), drawn(300, seed=1).bfloat16()
    _, mean, rstd = torch.native_layer_norm(x, (300,), weight, None, 1e-5)
    given = x, x, (300,), mean.bfloat16(), rstd.bfloat16(), weight, None, [True, True, False]
    with invariant_mode():
        found = torch.ops.aten.native_layer_norm_backward(*given)
    for each, stock in zip(found[:2], torch.ops.aten.native_layer_norm_backward(*given)[:2], strict=True):
        torch.testing.assert_close(each, stock, rtol=0.1, atol=0.5)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
def test_nothing_to_normalise(shape: tuple[int, int]) -> None:
    x, weight, bias = (torch.ones(each, requires_grad=True) for each in (shape, shape[1:], shape[1:]))
    with invariant_mode():
        y = layer_norm(x, shape[1:], weight, bias)
        y.sum().backward()  # type: ignore[no-untyped-call]
    assert y.shape == shape and x.grad is not None and x.grad.shape == shape
    assert weight.grad is not None and same_bits(weight.grad, torch.zeros(shape[1:]))
    assert bias.grad is not None and same_bits(bias.grad, torch.zeros(shape[1:]))
