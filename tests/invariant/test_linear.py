"""A linear layer as one node of the graph: the bits of its parts one by one, in every shape; gradients of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.invariant import invariant_mode
from samebits.numerics.bits import same_bits


class Looking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Where another mode is open, all is asked for part by part."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def found(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[str, list[Tensor]]:
    y = linear(x, weight, bias)
    dy = torch.from_numpy(np.random.default_rng(9).normal(size=y.shape)).to(y.dtype)
    leaves = [each for each in (x, weight, bias) if each is not None and each.requires_grad]
    return type(y.grad_fn).__name__, [y, *torch.autograd.grad(y, leaves, dy)]


SHAPES = [(7, 40), (40,), (2, 3, 40), (0, 40), (2, 0, 40), (1, 1, 1, 40)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_has_the_bits_of_its_parts(shape: tuple[int, ...], biased: bool, dtype: torch.dtype) -> None:
    """Output and all gradients; of strided and expanded inputs too."""
    weight = drawn(11, 40, seed=2, dtype=dtype)
    bias = drawn(11, seed=3, dtype=dtype) if biased else None
    for x in (drawn(*shape, seed=1, dtype=dtype), drawn(*shape[:-1], 80, seed=1, dtype=dtype)[..., ::2].detach()):
        x.requires_grad_()
        with invariant_mode(), Looking():
            kind, wanted = found(x, weight, bias)
        with invariant_mode():
            one, ours = found(x, weight, bias)
        assert one == "_LinearBackward" != kind
        assert all(map(same_bits, ours, wanted))


def test_what_needs_no_gradient_has_none() -> None:
    x, weight = drawn(5, 40, seed=1, dtype=torch.float32), drawn(11, 40, seed=2, dtype=torch.float32)
    for frozen in (x, weight):
        frozen.requires_grad_(False)
        with invariant_mode() as mode:
            _, ours = found(x, weight, None)
        assert len(ours) == 2 and mode.routed["aten.mm.default"] == 2
        frozen.requires_grad_()


@pytest.mark.parametrize("shape", [(1, 11), (1,), ()], ids=str)
def test_a_bias_of_another_shape_is_taken_part_by_part(shape: tuple[int, ...]) -> None:
    x, weight = drawn(5, 40, seed=1, dtype=torch.float32), drawn(11, 40, seed=2, dtype=torch.float32)
    bias = torch.full(shape, 0.5, requires_grad=True)
    try:
        stock = linear(x, weight, bias)
    except RuntimeError:
        pytest.fail("torch itself takes this bias")
    with invariant_mode():
        kind, ours = found(x, weight, bias)
    torch.testing.assert_close(ours[0], stock)
    assert kind != "_LinearBackward" and ours[3].shape == shape


def test_a_gradient_of_a_gradient() -> None:
    """Against float64: sums of 40, 11 and 5 terms, three deep."""
    x, weight = drawn(5, 40, seed=1, dtype=torch.float32), drawn(11, 40, seed=2, dtype=torch.float32)

    def second(x: Tensor, weight: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(linear(x, weight).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weight)[0]

    with invariant_mode():
        ours = second(x, weight)
    exact = second(x.detach().double().requires_grad_(), weight.detach().double().requires_grad_())
    assert (ours.double() - exact).abs().max() <= 200 * 2.0**-24 * exact.abs().max()
