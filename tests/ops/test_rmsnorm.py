"""RMSNorm on the CPU: its reference bit for bit, gradients, the resumed weight gradient, torch's checks, bad input."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.rmsnorm import add_rmsnorm, rmsnorm, rmsnorm_statistic, rmsnorm_weight_gradient_

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (3, 7), (2, 255), (5, 256), (5, 257), (33, 576), (4, 1031))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def outputs(
    x: Tensor, weight: Tensor, residual: Tensor | None, dy: Tensor, dhidden: Tensor, **options: str
) -> dict[str, Tensor]:
    """Everything the spec computes: output, hidden, all gradients."""
    leaves = [leaf.detach().requires_grad_() for leaf in (x, weight) if leaf is not None]
    if residual is None:
        y = rmsnorm(*leaves, 1e-6, **options)
        assert isinstance(y, Tensor)
        gradients = torch.autograd.grad(y, leaves, dy)
        return {"y": y, "dx": gradients[0], "dweight": gradients[1]}
    leaves.append(residual.detach().requires_grad_())
    y, hidden = add_rmsnorm(leaves[0], leaves[2], leaves[1], 1e-6, **options)
    gradients = torch.autograd.grad((y, hidden), leaves, (dy, dhidden))
    return {"y": y, "hidden": hidden, "dx": gradients[0], "dweight": gradients[1], "dresidual": gradients[2]}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, with and without residual, forward and backward."""
    for shape in SHAPES:
        x, weight = tensor(recipe, shape, 1, dtype), tensor("normal", shape[-1:], 2, dtype)
        residual, dy, dhidden = (tensor("normal", shape, seed, dtype) for seed in (3, 4, 5))
        for given in (None, residual):
            ours = outputs(x, weight, given, dy, dhidden)
            reference = outputs(x, weight, given, dy, dhidden, backend="reference")
            for name in reference:
                difference = compare(ours[name], reference[name])
                assert difference is None, f"{shape} residual={given is not None} {name}: {difference}"


def test_threads_and_instruction_sets_do_not_matter() -> None:
    """baseline == avx2 == avx512, for 1 to 9 threads, forward and backward."""
    x, weight, dy, dhidden = (
        tensor("wide", (41, 700), 1),
        tensor("normal", (700,), 2),
        tensor("normal", (41, 700), 3),
        tensor("normal", (41, 700), 4),
    )
    with launching(threads=1, instruction_set="baseline"):
        expected = outputs(x, weight, dhidden, dy, dhidden)
    for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 3, 9)):
        with launching(threads=threads, instruction_set=instruction_set):
            for name, value in outputs(x, weight, dhidden, dy, dhidden).items():
                assert compare(value, expected[name]) is None, (instruction_set, threads, name)


def test_a_changed_order_is_noticed() -> None:
    """Planted fault: the row rotated by one, so that other elements share a lane."""
    x, weight = tensor("normal", (64, 700), 1), torch.ones(700)
    assert compare(rmsnorm_statistic(x.roll(1, -1), weight), rmsnorm_statistic(x, weight)) is not None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_weight_gradient_resumes(dtype: torch.dtype) -> None:
    """dweight in one pass == dweight over any cut of the rows; rounded, it is autograd's."""
    x, weight, dy = (
        tensor("normal", (97, 300), 1, dtype),
        tensor("normal", (300,), 2, dtype),
        tensor("cancelling", (97, 300), 3, dtype),
    )
    statistic = rmsnorm_statistic(x, weight)
    whole = rmsnorm_weight_gradient_(torch.zeros(300), dy, x, statistic)
    for cuts in ([16], [1, 2, 3, 50], [96], list(range(1, 97))):
        pieces = torch.zeros(300)
        for rows in torch.arange(97).tensor_split(cuts):
            rmsnorm_weight_gradient_(pieces, dy[rows], x[rows], statistic[rows])
        assert compare(pieces, whole) is None, cuts
    assert compare(outputs(x, weight, None, dy, dy)["dweight"], whole.to(dtype)) is None


def test_layouts_do_not_matter() -> None:
    x, weight = tensor("normal", (6, 5, 40), 1), tensor("normal", (80,), 2)[::2]
    expected = rmsnorm(x, weight.contiguous())
    assert compare(rmsnorm(x.transpose(0, 1).contiguous().transpose(0, 1), weight), expected) is None
    assert compare(rmsnorm(torch.cat([x, x], -1)[..., :40], weight), expected) is None


def test_torch_accepts_the_operators() -> None:
    x, weight, residual = (torch.randn(shape, requires_grad=True) for shape in ((6, 33), (33,), (6, 33)))
    turned = torch.randn(33, 6, requires_grad=True).T
    operators = torch.ops.samebits
    for given in (x, turned):
        torch.library.opcheck(operators.rmsnorm.default, (given, weight, 1e-6, "cpu"))
        torch.library.opcheck(operators.rmsnorm_residual.default, (given, weight, residual, 1e-6, "cpu"))
    rstd = torch.rand(6)
    for dhidden in (None, residual.detach()):
        torch.library.opcheck(
            operators.rmsnorm_dx.default, (turned.detach(), x.detach(), weight.detach(), rstd, dhidden, "cpu")
        )
    torch.library.opcheck(operators.rmsnorm_dweight_.default, (torch.zeros(33), x.detach(), x.detach(), rstd, "cpu"))


def test_gradcheck() -> None:
    """The gradient formulas, in float64 on the reference path."""
    x, weight, residual = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 6), (6,), (4, 6))
    )
    assert gradcheck(lambda *given: rmsnorm(*given, 1e-3, backend="reference"), (x, weight))
    assert gradcheck(lambda x, w, r: add_rmsnorm(x, r, w, 1e-3, backend="reference"), (x, weight, residual))


def test_compiled_equals_eager() -> None:
    weight = torch.randn(48, requires_grad=True)
    compiled = torch.compile(lambda x: rmsnorm(x, weight) * 2, dynamic=True)
    for rows in (2, 5, 64):
        x, dy = torch.randn(rows, 48, requires_grad=True), torch.randn(rows, 48)
        eager_out, compiled_out = rmsnorm(x, weight) * 2, compiled(x)
        assert compare(compiled_out, eager_out) is None
        eager = torch.autograd.grad(eager_out, (x, weight), dy)
        for left, right in zip(torch.autograd.grad(compiled_out, (x, weight), dy), eager, strict=True):
            assert compare(left, right) is None


def test_rows_of_zeros_and_no_rows() -> None:
    weight = torch.ones(8)
    assert compare(rmsnorm(torch.zeros(2, 8), weight), torch.zeros(2, 8)) is None
    assert rmsnorm(torch.zeros(0, 8), weight).shape == (0, 8)  # type: ignore[union-attr]
    x = torch.zeros(0, 8, requires_grad=True)
    given = weight.clone().requires_grad_()
    rmsnorm(x, given).sum().backward()  # type: ignore[union-attr]
    assert x.grad is not None and x.grad.shape == (0, 8)
    assert given.grad is not None and compare(given.grad, torch.zeros(8)) is None


def test_a_poisoned_row_stays_alone() -> None:
    x, weight = tensor("normal", (4, 300), 1), torch.ones(300)
    poisoned = x.clone()
    poisoned[2] = torch.nan
    kept = [0, 1, 3]
    assert compare(rmsnorm(poisoned, weight)[kept], rmsnorm(x, weight)[kept]) is None  # type: ignore[index]
    assert bool(torch.isnan(rmsnorm(poisoned, weight)[2]).all())  # type: ignore[index]


ROW = torch.ones(2, 3)
WEIGHT = torch.ones(3)
BAD = {
    "weight length": (
        lambda: rmsnorm(ROW, torch.ones(4)),
        "the last axis of x is 3, the length of weight is 4; they must agree",
    ),
    "no width": (
        lambda: rmsnorm(torch.ones(2, 0), torch.ones(0)),
        r"x has shape \(2, 0\); allowed: a last axis of at least 1",
    ),
    "scalar": (
        lambda: rmsnorm(torch.tensor(1.0), torch.ones(1)),
        r"x has shape \(\); allowed: a last axis of at least 1",
    ),
    "integers": (lambda: rmsnorm(ROW.int(), WEIGHT.int()), "x has dtype int32; allowed with backend='cpu'"),
    "mixed dtypes": (lambda: rmsnorm(ROW, WEIGHT.half()), "weight has dtype float16, x has float32; they must agree"),
    "negative eps": (lambda: rmsnorm(ROW, WEIGHT, -1.0), "eps is -1.0; allowed: finite, at least 0"),
    "eps not a number": (lambda: rmsnorm(ROW, WEIGHT, float("nan")), "eps is nan; allowed: finite, at least 0"),
    "residual shape": (lambda: add_rmsnorm(ROW, torch.ones(3), WEIGHT), r"residual has shape \(3,\), x has \(2, 3\)"),
    "wrong device": (
        lambda: rmsnorm(ROW, WEIGHT, backend="triton"),
        "backend='triton' takes tensors on 'cuda', got one on 'cpu'",
    ),
    "statistic": (
        lambda: rmsnorm_weight_gradient_(torch.zeros(3), ROW, ROW, torch.ones(3)),
        "allowed: dy like x, statistic float32",
    ),
    "accumulator": (
        lambda: rmsnorm_weight_gradient_(torch.zeros(4), ROW, ROW, torch.ones(2)),
        r"accumulator has shape \(4,\); allowed: \(3,\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
