"""LayerNorm on the CPU: its reference bit for bit, near float64, gradients, resumed sums, torch's checks, bad input."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import layer_norm

from samebits.contracts.orders import sum_error
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.layernorm import (
    layernorm,
    layernorm_bias_gradient_,
    layernorm_mean,
    layernorm_statistics,
    layernorm_weight_gradient_,
)
from samebits.ops.layernorm.check import SPECS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (3, 7), (2, 255), (5, 256), (5, 257), (33, 576), (4, 1031))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed", "constant")
# Whether there is a weight, whether there is a bias.
FORMS = tuple(itertools.product((True, False), repeat=2))


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def outputs(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, dy: Tensor, eps: float = 1e-5, **options: str
) -> dict[str, Tensor]:
    """Output and all gradients."""
    given = {"x": x, "weight": weight, "bias": bias}
    leaves = {name: each.detach().requires_grad_() for name, each in given.items() if each is not None}
    y = layernorm(leaves["x"], leaves.get("weight"), leaves.get("bias"), eps, **options)
    return {"y": y.detach(), **dict(zip(leaves, torch.autograd.grad(y, list(leaves.values()), dy), strict=True))}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, with and without weight and bias, forward and backward."""
    for shape, (weighted, biased) in itertools.product(SHAPES, FORMS):
        x, dy = tensor(recipe, shape, 1, dtype), tensor("normal", shape, 4, dtype)
        weight = tensor("normal", shape[-1:], 2, dtype) if weighted else None
        bias = tensor("zeros_signed", shape[-1:], 3, dtype) if biased else None
        ours = outputs(x, weight, bias, dy)
        for name, expected in outputs(x, weight, bias, dy, backend="reference").items():
            assert compare(ours[name], expected) is None, (shape, weighted, biased, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_within_the_derived_bound_of_torch_in_float64(dtype: torch.dtype) -> None:
    """Output and gradients, against torch's own layer norm and autograd."""
    for shape, offset in itertools.product(SHAPES[1:], (0.0, 8.0)):
        x, dy = (tensor("normal", shape, 1, dtype) + offset).to(dtype), tensor("normal", shape, 4, dtype)
        weight, bias = (tensor("normal", shape[-1:], seed, dtype) for seed in (2, 3))
        wide = {name: each.double().requires_grad_() for name, each in (("x", x), ("weight", weight), ("bias", bias))}
        y = layer_norm(wide["x"], shape[-1:], wide["weight"], wide["bias"], 1e-5)
        exact = {"output": y, **dict(zip(wide, torch.autograd.grad(y, list(wide.values()), dy.double()), strict=True))}
        found = outputs(x, weight, bias, dy)
        found["output"] = found.pop("y")
        bounds = SPECS["layernorm"].exact(
            {"x": x, "weight": weight, "bias": bias}, dy, lambda terms: sum_error("lanes-256", terms)
        )
        for name, bound in bounds.items():
            error = (found[name].double() - exact[name]).abs()
            assert bool((error <= bound.allowed).all()), (shape, offset, name, float((error - bound.allowed).max()))
            assert bool(bound.allowed.isfinite().all()), (shape, offset, name)


def test_a_changed_order_is_noticed() -> None:
    """Planted fault: the row rotated by one, so that other elements share a lane."""
    x = tensor("normal", (64, 700), 1)
    for turned, plain in zip(layernorm_statistics(x.roll(1, -1)), layernorm_statistics(x), strict=True):
        assert compare(turned, plain) is not None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradients_of_weight_and_bias_resume(dtype: torch.dtype) -> None:
    """In one pass == over any cut of the rows; rounded, they are autograd's."""
    x, dy = tensor("normal", (97, 300), 1, dtype), tensor("cancelling", (97, 300), 3, dtype)
    mean, rstd = layernorm_statistics(x)
    assert compare(mean, layernorm_mean(x)) is None
    dweight = layernorm_weight_gradient_(torch.zeros(300), dy, x, mean, rstd)
    dbias = layernorm_bias_gradient_(torch.zeros(300), dy)
    for cuts in ([16], [1, 2, 3, 50], [96], list(range(1, 97))):
        weights, biases = torch.zeros(300), torch.zeros(300)
        for rows in torch.arange(97).tensor_split(cuts):
            layernorm_weight_gradient_(weights, dy[rows], x[rows], mean[rows], rstd[rows])
            layernorm_bias_gradient_(biases, dy[rows])
        assert compare(weights, dweight) is None and compare(biases, dbias) is None, cuts
    found = outputs(x, torch.ones(300, dtype=dtype), torch.zeros(300, dtype=dtype), dy)
    assert compare(found["weight"], dweight.to(dtype)) is None
    assert compare(found["bias"], dbias.to(dtype)) is None


def test_layouts_do_not_matter() -> None:
    x, weight, bias = tensor("normal", (6, 5, 40), 1), *(tensor("normal", (80,), seed)[::2] for seed in (2, 3))
    expected = layernorm(x, weight.contiguous(), bias.contiguous())
    assert compare(layernorm(x.transpose(0, 1).contiguous().transpose(0, 1), weight, bias), expected) is None
    assert compare(layernorm(torch.cat([x, x], -1)[..., :40], weight, bias), expected) is None


def test_neutral_weights_and_biases_change_nothing() -> None:
    """Ones are no weight; -0 is no bias, for +0 would make a zero positive."""
    x = tensor("zeros_signed", (7, 33), 1)
    plain = layernorm(x)
    assert compare(layernorm(x, torch.ones(33)), plain) is None
    assert compare(layernorm(x, bias=torch.full((33,), -0.0)), plain) is None
    assert compare(layernorm(x, torch.ones(33), torch.full((33,), -0.0)), plain) is None


def test_torch_accepts_the_operators() -> None:
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((6, 33), (33,), (33,)))
    turned, operators = torch.randn(33, 6, requires_grad=True).T, torch.ops.samebits
    for arguments in ((x, weight, bias), (turned, weight, None), (turned, None, bias)):
        torch.library.opcheck(operators.layernorm.default, (*arguments, 1e-5, "cpu"))
    mean, rstd, rows = torch.rand(6), torch.rand(6), x.detach()
    for given in (None, weight.detach()):
        torch.library.opcheck(operators.layernorm_dx.default, (turned.detach(), rows, given, mean, rstd, "cpu"))
    torch.library.opcheck(operators.layernorm_dweight_.default, (torch.zeros(33), rows, rows, mean, rstd, "cpu"))
    torch.library.opcheck(operators.layernorm_dbias_.default, (torch.zeros(33), turned.detach(), "cpu"))


def test_gradcheck() -> None:
    """The gradient formulas, in float64 on the reference path."""
    x, weight, bias = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 6), (6,), (6,)))
    for weighted, biased in FORMS:
        given = tuple(each for each, used in ((weight, weighted), (bias, biased)) if used)

        def norm(x: Tensor, *given: Tensor, weighted: bool = weighted, biased: bool = biased) -> Tensor:
            rest = iter(given)
            used = next(rest) if weighted else None, next(rest) if biased else None
            return layernorm(x, *used, 1e-3, backend="reference")

        assert gradcheck(norm, (x, *given))


def test_compiled_equals_eager() -> None:
    weight, bias = torch.randn(48, requires_grad=True), torch.randn(48, requires_grad=True)
    compiled = torch.compile(lambda x: layernorm(x, weight, bias) * 2, dynamic=True)
    for rows in (2, 5, 64):
        x, dy = torch.randn(rows, 48, requires_grad=True), torch.randn(rows, 48)
        eager_out, compiled_out = layernorm(x, weight, bias) * 2, compiled(x)
        assert compare(compiled_out, eager_out) is None
        eager = torch.autograd.grad(eager_out, (x, weight, bias), dy)
        for left, right in zip(torch.autograd.grad(compiled_out, (x, weight, bias), dy), eager, strict=True):
            assert compare(left, right) is None


def test_rows_of_one_value_and_no_rows() -> None:
    bias = torch.randn(8)
    for value in (0.0, 3.0, -1024.25):
        assert compare(layernorm(torch.full((2, 8), value), torch.randn(8), bias), bias.expand(2, 8)) is None
    assert compare(layernorm(torch.randn(5, 1), torch.ones(1), bias[:1]), bias[:1].expand(5, 1)) is None
    x, weight = torch.zeros(0, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    y = layernorm(x, weight)
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert y.shape == (0, 8) and x.grad is not None and x.grad.shape == (0, 8)
    assert weight.grad is not None and compare(weight.grad, torch.zeros(8)) is None


def test_a_poisoned_row_stays_alone() -> None:
    x, kept = tensor("normal", (4, 300), 1), [0, 1, 3]
    poisoned = x.clone()
    poisoned[2, 7] = torch.nan
    assert compare(layernorm(poisoned)[kept], layernorm(x)[kept]) is None
    assert bool(torch.isnan(layernorm(poisoned)[2]).all())


ROW = torch.ones(2, 3)
VECTOR = torch.ones(3)
LENGTHS = "the last axis of x is 3, the length of {} is 4; they must agree"
BAD = {
    "weight length": (lambda: layernorm(ROW, torch.ones(4)), LENGTHS.format("weight")),
    "bias length": (lambda: layernorm(ROW, None, torch.ones(4)), LENGTHS.format("bias")),
    "weight axes": (lambda: layernorm(ROW, VECTOR[None]), r"weight has shape \(1, 3\); allowed: 1 dimensions"),
    "no width": (lambda: layernorm(torch.ones(2, 0)), r"x has shape \(2, 0\); allowed: a last axis of at least 1"),
    "scalar": (lambda: layernorm(torch.tensor(1.0)), r"x has shape \(\); allowed: a last axis of at least 1"),
    "integers": (lambda: layernorm(ROW.int()), "x has dtype int32; allowed with backend='cpu'"),
    "mixed dtypes": (lambda: layernorm(ROW, VECTOR, VECTOR.half()), "bias has dtype float16, x has float32"),
    "negative eps": (lambda: layernorm(ROW, VECTOR, None, -1.0), "eps is -1.0; allowed: finite, at least 0"),
    "eps not a number": (lambda: layernorm(ROW, eps=float("nan")), "eps is nan; allowed: finite, at least 0"),
    "wrong device": (lambda: layernorm(ROW, backend="triton"), "backend='triton' takes tensors on 'cuda'"),
    "statistics": (
        lambda: layernorm_weight_gradient_(torch.zeros(3), ROW, ROW, VECTOR, VECTOR),
        "allowed: dy like x, mean and rstd float32 without the last axis",
    ),
    "narrow statistics": (
        lambda: layernorm_weight_gradient_(torch.zeros(3), ROW, ROW, VECTOR[:2].half(), VECTOR[:2].half()),
        "allowed: dy like x, mean and rstd float32 without the last axis",
    ),
    "accumulator": (
        lambda: layernorm_bias_gradient_(torch.zeros(4), ROW),
        r"accumulator has shape \(4,\); allowed: \(3,\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
