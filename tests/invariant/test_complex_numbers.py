"""Complex numbers in the mode: a product has its bits wherever it lies, those of its parts; the rest is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from samebits.invariant import InvariantError, invariant_mode
from samebits.numerics.bits import same_bits


def drawn(seed: int, count: int = 300) -> Tensor:
    return torch.complex(*torch.randn(2, count, generator=torch.Generator().manual_seed(seed)))


A, B = drawn(1), drawn(2)
PRODUCTS = {
    "two": lambda a, b: a * b,
    "with a conjugate": lambda a, b: a * b.conj(),
    "in place": lambda a, b: a.clone().mul_(b),
    "by a real number": lambda a, b: a * 0.3,
    "by a complex number": lambda a, b: a * (0.3 - 1.7j),
    "polar": lambda a, b: torch.polar(a.real.contiguous(), b.real.contiguous()),
}


def pairs(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()).contiguous()


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_a_products_bits_do_not_depend_on_its_place(product: object) -> None:
    assert callable(product)
    with invariant_mode():
        whole = pairs(product(A, B))
        for start in (0, 1, 5, 13):
            for count in range(1, 20):
                part = product(A[start : start + count].clone(), B[start : start + count].clone())
                assert same_bits(pairs(part), whole[start : start + count])


def test_a_product_is_that_of_its_parts() -> None:
    a, b, c, d = A.real, A.imag, B.real, B.imag
    with invariant_mode() as mode:
        found = A * B
    assert same_bits(pairs(found), torch.stack([a * c - b * d, a * d + b * c], -1))
    assert mode.routed["aten.mul.Tensor"] == 1


def test_rotated_pairs_and_their_gradients_are_those_alone() -> None:
    """Positions as complex numbers, as llama4 and deepseek_v2 turn queries and keys."""

    def turned(x: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        numbers = torch.view_as_complex(leaf.reshape(len(x), -1, 2)) * torch.polar(torch.ones_like(angles), angles)
        y = torch.view_as_real(numbers).flatten(1)
        (gradient,) = torch.autograd.grad(y, leaf, x.flip(-1).contiguous())
        return y.detach(), gradient

    source = torch.Generator().manual_seed(3)
    x, angles = torch.randn(33, 26, generator=source), torch.randn(33, 13, generator=source) * 50
    with invariant_mode():
        whole = turned(x, angles)
        for row in (0, 7, 32):
            alone = turned(x[row : row + 1], angles[row : row + 1])
            assert all(same_bits(a[0], b[row]) for a, b in zip(alone, whole, strict=True))


@pytest.mark.parametrize("function", [torch.exp, torch.abs, torch.square, torch.sum, torch.sgn, torch.reciprocal])
def test_nothing_else_is_computed_without_its_imaginary_part(function: object) -> None:
    assert callable(function)
    with invariant_mode(), pytest.raises(InvariantError, match="of complex numbers only sums, products and polar"):
        function(A)
