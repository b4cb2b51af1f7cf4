"""Softmax on the CPU: its reference bit for bit, gradients, axes, dtypes, torch's checks, special rows, bad input."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.softmax import log_softmax, softmax

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (3, 7), (2, 255), (3, 256), (3, 257), (9, 576), (2, 1031))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")
FUNCTIONS = (softmax, log_softmax)


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def outputs(function: Callable[..., Tensor], x: Tensor, dy: Tensor, **options: object) -> dict[str, Tensor]:
    leaf = x.detach().requires_grad_()
    y = function(leaf, **options)
    return {"y": y.detach(), "dx": torch.autograd.grad(y, leaf, dy.to(y.dtype))[0]}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, in both result dtypes, forward and backward."""
    for shape, function, result in itertools.product(SHAPES, FUNCTIONS, {dtype, torch.float32}):
        x, dy = tensor(recipe, shape, 1, dtype), tensor("normal", shape, 2, dtype)
        ours = outputs(function, x, dy, dtype=result)
        reference = outputs(function, x, dy, dtype=result, backend="reference")
        assert ours["y"].dtype == result and ours["dx"].dtype == dtype
        for name in reference:
            difference = compare(ours[name], reference[name])
            assert difference is None, f"{shape} {function.__name__} {result} {name}: {difference}"


def test_a_changed_order_is_noticed() -> None:
    """Planted fault: the row rotated by one, so that other elements share a lane."""
    x = tensor("normal", (64, 700), 1)
    for function in FUNCTIONS:
        assert compare(function(x.roll(1, -1)).roll(-1, -1), function(x)) is not None


def test_close_to_torch() -> None:
    """Each is within the error of a sum in any order and of an exponential: (width + 64) roundings are twice that."""
    x = tensor("normal", (8, 1031), 1) * 4
    expected, roundings = torch.softmax(x, -1), (1031 + 64) * 2.0**-24
    assert bool(((softmax(x) - expected).abs() <= roundings * expected).all())
    assert float((log_softmax(x) - torch.log_softmax(x, -1)).abs().max()) <= roundings


@pytest.mark.parametrize("function", FUNCTIONS)
def test_any_axis(function: Callable[..., Tensor]) -> None:
    """Over another axis == moved last, computed there and moved back; layouts do not matter."""
    x, dy = tensor("normal", (4, 5, 6), 1), tensor("normal", (4, 5, 6), 2)
    for dim in (0, 1, 2, -1, -2, -3):
        moved = outputs(function, x.movedim(dim, -1).contiguous(), dy.movedim(dim, -1).contiguous())
        for name, value in outputs(function, x, dy, dim=dim).items():
            assert compare(value, moved[name].movedim(-1, dim)) is None, (dim, name)
    assert compare(function(torch.cat([x, x], -1)[..., :6]), function(x)) is None
    assert function(x[0, 0]).shape == (6,)


def test_torch_accepts_the_operators() -> None:
    x, turned = torch.randn(6, 33, requires_grad=True), torch.randn(33, 6, requires_grad=True).T
    torch.library.opcheck(torch.ops.samebits.softmax.default, (turned, torch.float32, False, "cpu"))
    narrow = x.detach().half().requires_grad_()
    torch.library.opcheck(torch.ops.samebits.softmax.default, (narrow, torch.float32, True, "cpu"))
    arguments = (turned.detach(), x.detach(), torch.bfloat16, True, "cpu")
    torch.library.opcheck(torch.ops.samebits.softmax_dx.default, arguments)


def test_gradcheck() -> None:
    """The gradient formulas, in float64 on the reference path."""
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    for function in FUNCTIONS:
        assert gradcheck(lambda given, function=function: function(given, backend="reference"), (x,))


def test_compiled_equals_eager() -> None:
    def both(x: Tensor) -> Tensor:
        return softmax(log_softmax(x), 0)

    compiled = torch.compile(both, fullgraph=True, dynamic=True)
    for rows in (2, 5, 64):
        x, dy = torch.randn(rows, 48, requires_grad=True), torch.randn(rows, 48)
        eager_out, compiled_out = both(x), compiled(x)
        assert compare(compiled_out, eager_out) is None
        (eager,), (found,) = torch.autograd.grad(eager_out, x, dy), torch.autograd.grad(compiled_out, x, dy)
        assert compare(found, eager) is None


def test_rows_of_minus_infinity() -> None:
    """Nothing to choose from: probability 0 and logarithm -inf everywhere, no NaN, and no gradient of softmax."""
    x = torch.full((2, 300), -torch.inf)
    assert compare(softmax(x), torch.zeros(2, 300)) is None
    assert compare(log_softmax(x), x) is None
    assert compare(outputs(softmax, x, torch.ones(2, 300))["dx"], torch.zeros(2, 300)) is None
    x[0, 7] = 5.0
    assert compare(softmax(x)[0], torch.eye(300)[7]) is None
    assert float(log_softmax(x)[0, 7]) == 0.0


def test_the_sign_of_a_zero_maximum_does_not_matter() -> None:
    """A maximum of zero is +0 or -0 by whichever was seen first: neither may reach the result."""
    left, right = torch.tensor([[0.0, -0.0, -200.0]]), torch.tensor([[-0.0, 0.0, -200.0]])
    for function in FUNCTIONS:
        assert compare(function(left)[:, [1, 0, 2]], function(right)) is None
    assert compare(log_softmax(torch.tensor([[-0.0]])), torch.tensor([[-0.0]])) is None


def test_no_rows() -> None:
    for function in FUNCTIONS:
        x = torch.zeros(0, 8, requires_grad=True)
        y = function(x, dtype=torch.float32)
        y.sum().backward()
        assert y.shape == (0, 8) and x.grad is not None and x.grad.shape == (0, 8)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_row_stays_alone(poison: float) -> None:
    x = tensor("normal", (4, 300), 1)
    poisoned = x.clone()
    poisoned[2, 17] = poison
    kept = [0, 1, 3]
    for function in FUNCTIONS:
        assert compare(function(poisoned)[kept], function(x)[kept]) is None
        assert bool(torch.isnan(function(poisoned)[2]).all())


ROW = torch.ones(2, 3)
BAD = {
    "no such axis": (lambda: softmax(ROW, 2), r"softmax: dim is 2, x has shape \(2, 3\); allowed: one of its axes"),
    "scalar": (lambda: softmax(torch.tensor(1.0)), r"dim is -1, x has shape \(\); allowed: one of its axes"),
    "empty axis": (
        lambda: log_softmax(torch.ones(3, 0)),
        r"log_softmax: axis -1 of x with shape \(3, 0\) is empty; allowed: at least 1",
    ),
    "integers": (lambda: softmax(ROW.int()), "x has dtype int32; allowed with backend='cpu'"),
    "narrower result": (
        lambda: softmax(ROW, dtype=torch.bfloat16),
        "dtype is torch.bfloat16 for x of float32; allowed: x's own, torch.float32",
    ),
    "other device": (
        lambda: softmax(ROW, backend="triton"),
        "backend='triton' takes tensors on 'cuda', got one on 'cpu'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
