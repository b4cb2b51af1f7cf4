"""GELU on the CPU, by erf and by tanh: its reference bit for bit, gradients, torch's checks and values, bad input."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.gelu import APPROXIMATIONS, gelu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (3, 7), (2, 255), (5, 257), (3, 4, 40))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed", "random_bits")


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def outputs(x: Tensor, dy: Tensor, approximate: str, **options: str) -> dict[str, Tensor]:
    """Everything the spec computes: output and gradient."""
    leaf = x.detach().requires_grad_()
    y = gelu(leaf, approximate, **options)
    (dx,) = torch.autograd.grad(y, leaf, dy)
    return {"y": y, "dx": dx}


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, approximate: str) -> None:
    """cpu == reference, bit for bit, forward and backward."""
    for recipe, shape in itertools.product(RECIPES, SHAPES):
        x, dy = tensor(recipe, shape, 1, dtype), tensor(recipe, shape, 2, dtype)
        ours, reference = outputs(x, dy, approximate), outputs(x, dy, approximate, backend="reference")
        for name in reference:
            difference = compare(ours[name], reference[name])
            assert difference is None, f"{recipe} {shape} {name}: {difference}"


def test_another_formula_is_noticed() -> None:
    """Planted fault: x/2 + x/2 erf(x / sqrt 2)."""
    x = tensor("normal", (64, 70), 1)
    assert compare(gelu(x), x * 0.5 + x * 0.5 * torch.erf(x * 0.7071067811865476)) is not None


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_values_are_torchs(approximate: str) -> None:
    """Ours: 1 + e within four half-ulps of 2, times x/2; theirs: no more than three times that."""
    x = tensor("normal", (64, 300), 1)
    error = (gelu(x, approximate) - torch.nn.functional.gelu(x, approximate=approximate)).abs()
    assert bool((error <= 16 * 2.0**-24 * x.abs()).all())


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_infinities_are_as_documented(approximate: str) -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, -1e30, -9.0]).requires_grad_()
    y = gelu(x, approximate)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert y[0] == torch.inf and bool(y[1:3].isnan().all())
    assert y[3] == x[3] and y[4] == 0 and bool(y[5].isfinite())
    assert bool(dx[:3].isnan().all()) and bool(dx[5].isfinite())
    assert bool(dx[3:5].isnan().all()) == (approximate == "tanh")


def test_layouts_do_not_matter() -> None:
    x = tensor("normal", (6, 5, 80), 1)[..., ::2]
    expected = gelu(x.contiguous())
    assert compare(gelu(x), expected) is None
    assert compare(gelu(x.transpose(0, 1)).transpose(0, 1).contiguous(), expected) is None
    assert gelu(x[0, 0, 0]).shape == ()


def test_torch_accepts_the_operators() -> None:
    x, turned = torch.randn(6, 33, requires_grad=True), torch.randn(33, 6, requires_grad=True).T
    for given, by_tanh in ((x, False), (turned, True)):
        torch.library.opcheck(torch.ops.samebits.gelu.default, (given, by_tanh, "cpu"))
        torch.library.opcheck(torch.ops.samebits.gelu_backward.default, (x.detach(), given.detach(), by_tanh, "cpu"))


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_gradcheck(approximate: str) -> None:
    """The gradient formulas, in float64 on the reference path."""
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda given: gelu(given, approximate, backend="reference"), (x,))


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_compiled_equals_eager(approximate: str) -> None:
    compiled = torch.compile(lambda x: gelu(x, approximate) * 2, dynamic=True, fullgraph=True)
    for rows in (2, 5, 64):
        x, dy = torch.randn(rows, 48, requires_grad=True), torch.randn(rows, 48)
        eager_out, compiled_out = gelu(x, approximate) * 2, compiled(x)
        assert compare(compiled_out, eager_out) is None
        (eager,), (found,) = (torch.autograd.grad(y, x, dy) for y in (eager_out, compiled_out))
        assert compare(found, eager) is None


def test_no_rows() -> None:
    x = torch.zeros(0, 8, requires_grad=True)
    y = gelu(x)
    y.sum().backward()
    assert y.shape == (0, 8)
    assert x.grad is not None and x.grad.shape == (0, 8)


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_a_poisoned_row_stays_alone(approximate: str) -> None:
    x, dy = tensor("normal", (4, 300), 1), tensor("normal", (4, 300), 2)
    poisoned = x.clone()
    poisoned[2] = torch.nan
    clean, found = outputs(x, dy, approximate), outputs(poisoned, dy, approximate)
    for name, value in found.items():
        assert compare(value[[0, 1, 3]], clean[name][[0, 1, 3]]) is None
        assert bool(value[2].isnan().all())


ROW = torch.ones(2, 3)
BAD = {"approximate": (lambda: gelu(ROW, "sigmoid"), "approximate is 'sigmoid'; allowed: none, tanh")}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
