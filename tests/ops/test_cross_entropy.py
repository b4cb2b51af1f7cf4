"""Cross-entropy on the CPU: its reference bit for bit, every reduction, chunks, micro-batches, torch, bad input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.cross_entropy import linear_cross_entropy, one_pass
from samebits.ops.logprob import selected_logprob, selected_logprob_weight_gradient_

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1, 1), (3, 7, 255), (6, 64, 257), (17, 40, 700))
RECIPES = ("normal", "cancelling", "infinite", "zeros_signed")


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def inputs(
    rows: int, depth: int, vocabulary: int, dtype: torch.dtype = torch.float32, recipe: str = "normal"
) -> tuple[Tensor, Tensor, Tensor]:
    """hidden, weight, targets (every fourth ignored)."""
    targets = torch.arange(rows) * 7919 % vocabulary
    targets[3::4] = -100
    hidden, weight = tensor(recipe, (rows, depth), 1, dtype), tensor("normal", (vocabulary, depth), 2, dtype) * 0.125
    return hidden, weight, targets


def outputs(hidden: Tensor, weight: Tensor, targets: Tensor, upstream: float = 1.0, **options: object) -> list[Tensor]:
    """Loss, gradient of hidden, gradient of weight."""
    leaves = [leaf.detach().requires_grad_() for leaf in (hidden, weight)]
    loss = linear_cross_entropy(*leaves, targets, **options)  # type: ignore[arg-type]
    return [loss.detach(), *torch.autograd.grad(loss, leaves, torch.full_like(loss, upstream))]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit: every reduction, with an upstream that rounds, forward and backward."""
    cases: tuple[dict[str, object], ...] = (
        {"reduction": "mean"},
        {"reduction": "mean", "denominator": 37.0},
        {"reduction": "sum"},
        {"reduction": "none"},
    )
    for shape, options in itertools.product(SHAPES, cases):
        given = inputs(*shape, dtype, recipe)
        ours, reference = (outputs(*given, 0.3, **options, backend=backend) for backend in ("cpu", "reference"))
        assert ours[0].dtype == torch.float32 and ours[1].dtype == ours[2].dtype == dtype
        for name, left, right in zip(("loss", "hidden", "weight"), ours, reference, strict=True):
            difference = compare(left, right)
            assert difference is None, f"{shape} {options} {name}: {difference}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_made_of_log_probabilities(dtype: torch.dtype) -> None:
    """loss = 0 - logprob; a mean's gradients are those of logprobs under -1/denominator, times the upstream."""
    hidden, weight, targets = inputs(30, 40, 600, dtype)
    leaves = [leaf.detach().requires_grad_() for leaf in (hidden, weight)]
    logprob = selected_logprob(*leaves, targets)
    assert compare(outputs(hidden, weight, targets, reduction="none")[0], 0.0 - logprob.detach()) is None
    total = np.float32(0)
    for row in logprob.detach().numpy():
        total = total - row
    factor = np.float32(1) / np.float32((targets != -100).sum())
    found = outputs(hidden, weight, targets, 2.0)
    assert compare(found[0], torch.tensor(total * factor)) is None
    gradients = torch.autograd.grad(logprob, leaves, torch.full((30,), -float(factor)))
    for left, right in zip(found[1:], gradients, strict=True):
        assert compare(left, right * 2.0) is None  # doubling rounds nothing


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_size_of_a_chunk_does_not_matter(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows at once == 1, 7 or 16 rows at a time."""
    given = inputs(33, 48, 600, dtype)
    expected = outputs(*given)
    for rows in (1, 7, 16):
        monkeypatch.setattr(one_pass, "SCRATCH_NUMBERS", rows * 600)
        for left, right in zip(outputs(*given), expected, strict=True):
            assert compare(left, right) is None, rows


def test_threads_and_instruction_sets_do_not_matter() -> None:
    """baseline == avx2 == avx512, for 1 to 9 threads, forward and backward."""
    given = inputs(41, 70, 1300, recipe="cancelling")
    with launching(threads=1, instruction_set="baseline"):
        expected = outputs(*given)
    for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 9)):
        with launching(threads=threads, instruction_set=instruction_set):
            for left, right in zip(outputs(*given), expected, strict=True):
                assert compare(left, right) is None, (instruction_set, threads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_micro_batches_agree(dtype: torch.dtype) -> None:
    """Under one denominator rows get the same gradient in any micro-batch, and the weight's chain resumes."""
    hidden, weight, targets = inputs(48, 24, 300, dtype)
    active = int((targets != -100).sum())
    _, dhidden, dweight = outputs(hidden, weight, targets)
    whole = torch.zeros(300, 24)
    for rows in torch.arange(48).tensor_split([16, 32]):
        some = (hidden[rows], weight, targets[rows])
        assert compare(outputs(*some, denominator=active)[1], dhidden[rows]) is None
        g = torch.full((len(rows),), -float(np.float32(1) / np.float32(active)))
        selected_logprob_weight_gradient_(whole, g, *some)
    assert compare(whole.to(dtype), dweight) is None
    assert compare(outputs(hidden, weight, targets, denominator=active)[0], outputs(hidden, weight, targets)[0]) is None


def test_without_gradients_the_loss_is_the_same() -> None:
    hidden, weight, targets = inputs(20, 24, 300)
    for reduction in ("mean", "sum", "none"):
        plain = linear_cross_entropy(hidden, weight, targets, reduction=reduction)  # type: ignore[arg-type]
        assert not plain.requires_grad
        assert compare(plain, outputs(hidden, weight, targets, reduction=reduction)[0]) is None
    frozen = hidden.clone().requires_grad_()
    (dhidden,) = torch.autograd.grad(linear_cross_entropy(frozen, weight, targets), frozen)
    assert compare(dhidden, outputs(hidden, weight, targets)[1]) is None


def test_close_to_torch() -> None:
    hidden, weight, targets = inputs(50, 64, 3000)
    leaves = [leaf.double().requires_grad_() for leaf in (hidden, weight)]
    exact = torch.nn.functional.cross_entropy(leaves[0] @ leaves[1].T, targets)
    found = outputs(hidden, weight, targets)
    for left, right in zip(found, (exact.detach(), *torch.autograd.grad(exact, leaves)), strict=True):
        assert float((left - right).abs().max()) < 64 * 2.0**-24 * max(float(right.abs().max()), 1e-3)


def test_ignored_rows_leave_nothing() -> None:
    hidden, weight, targets = inputs(12, 24, 300)
    poisoned = hidden.clone()
    poisoned[3::4] = torch.nan
    for options in ({"reduction": "mean"}, {"reduction": "none"}):
        expected = outputs(hidden, weight, targets, **options)
        for left, right in zip(outputs(poisoned, weight, targets, **options), expected, strict=True):
            assert compare(left, right) is None, options
        assert compare(expected[1][3::4], torch.zeros(3, 24)) is None
    nothing = torch.full((12,), -100)
    assert bool(linear_cross_entropy(hidden, weight, nothing).isnan())
    loss, dhidden, dweight = outputs(hidden, weight, nothing, denominator=5)
    assert compare(loss, torch.zeros(())) is None and not dhidden.any() and not dweight.any()


def test_a_poisoned_row_stays_alone() -> None:
    hidden, weight, targets = inputs(5, 24, 300)
    poisoned, kept = hidden.clone(), [0, 1, 4]
    poisoned[2] = torch.nan
    assert compare(outputs(poisoned, weight, targets)[1][kept], outputs(hidden, weight, targets)[1][kept]) is None


def test_no_rows() -> None:
    for backend in ("cpu", "reference"):
        hidden, weight = torch.zeros(0, 8, requires_grad=True), torch.ones(5, 8, requires_grad=True)
        targets = torch.zeros(0, dtype=torch.long)
        assert linear_cross_entropy(hidden, weight, targets, reduction="none", backend=backend).shape == (0,)
        loss = linear_cross_entropy(hidden, weight, targets, denominator=3, backend=backend)
        assert compare(loss, torch.zeros(())) is None
        loss.backward()
        assert hidden.grad is not None and hidden.grad.shape == (0, 8)
        assert weight.grad is not None and compare(weight.grad, torch.zeros(5, 8)) is None


def test_torch_accepts_the_operators() -> None:
    hidden, weight, targets = inputs(6, 33, 300)
    leaves = [leaf.detach().requires_grad_() for leaf in (hidden, weight)]
    operators, empty = torch.ops.samebits, torch.zeros(0)
    torch.library.opcheck(operators.cross_entropy_rows.default, (*leaves, targets, -100, "cpu"))
    for backend, denominator in (("cpu", None), ("cpu", 7.0), ("reference", None)):
        given = (*leaves, targets, -100, "mean", denominator, True, True, backend)
        torch.library.opcheck(operators.cross_entropy.default, given)
    lse, one = (hidden @ weight.T).logsumexp(-1), torch.ones(())
    sums = {"cpu": (empty, torch.randn(6, 33), torch.randn(300, 33)), "reference": (lse, empty, empty)}
    for backend, saved in sums.items():
        torch.library.opcheck(
            operators.cross_entropy_gradients.default,
            (one, hidden, weight, targets, one, *saved, -100, True, True, backend),
        )


def test_gradcheck() -> None:
    """The gradient formulas, in float64 on the reference path."""
    hidden, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 6), (9, 6)))
    targets = torch.tensor([0, 8, -100, 3])
    for reduction in ("mean", "sum", "none"):
        assert gradcheck(
            lambda h, w, r=reduction: linear_cross_entropy(h, w, targets, reduction=r, backend="reference"),
            (hidden, weight),
        )


def test_compiled_equals_eager() -> None:
    hidden, weight, targets = inputs(20, 48, 300)
    leaves = [leaf.requires_grad_() for leaf in (hidden, weight)]
    compiled = torch.compile(lambda h, w: linear_cross_entropy(h, w, targets), fullgraph=True)
    eager_out, compiled_out = linear_cross_entropy(*leaves, targets), compiled(*leaves)
    assert compare(compiled_out, eager_out) is None
    pairs = zip(torch.autograd.grad(compiled_out, leaves), torch.autograd.grad(eager_out, leaves), strict=True)
    for left, right in pairs:
        assert compare(left, right) is None


H, W, T = torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 3])
BAD = {
    "target too large": (
        lambda: linear_cross_entropy(H, W, torch.tensor([1, 4])),
        "linear_cross_entropy: token 4 in row 1 is outside the vocabulary of 4; allowed: 0 to 3, or ignore_index=-100",
    ),
    "target too large, with gradients": (
        lambda: linear_cross_entropy(H.clone().requires_grad_(), W, torch.tensor([1, 4])),
        "linear_cross_entropy: token 4 in row 1",
    ),
    "target too large, by rows": (
        lambda: linear_cross_entropy(H, W, torch.tensor([-7, 4]), reduction="none"),
        "linear_cross_entropy: token -7 in row 0",
    ),
    "reduction": (
        lambda: linear_cross_entropy(H, W, T, reduction="median"),  # type: ignore[arg-type]
        "reduction is 'median'; allowed: mean, sum, none",
    ),
    "denominator of a sum": (
        lambda: linear_cross_entropy(H, W, T, reduction="sum", denominator=2),
        "denominator is 2 with reduction='sum'; allowed: with 'mean'",
    ),
    "no denominator": (
        lambda: linear_cross_entropy(H, W, T, denominator=0),
        "denominator is 0; allowed: finite in float32, above 0",
    ),
    "denominator not a number": (
        lambda: linear_cross_entropy(H, W, T, denominator=float("nan")),
        "denominator is nan; allowed: finite in float32, above 0",
    ),
    "width": (
        lambda: linear_cross_entropy(H, torch.ones(4, 5), T),
        "the last axis of hidden is 3, the last axis of weight is 5; they must agree",
    ),
    "integers": (
        lambda: linear_cross_entropy(H.int(), W.int(), T),
        "hidden has dtype int32; allowed with backend='cpu'",
    ),
    "targets as floats": (
        lambda: linear_cross_entropy(H, W, T.float()),
        "targets has dtype float32; allowed: int64, int32",
    ),
    "targets shape": (lambda: linear_cross_entropy(H, W, T[:1]), r"targets has shape \(1,\), hidden \(2, 3\)"),
    "wrong device": (
        lambda: linear_cross_entropy(H, W, T, backend="triton"),
        "backend='triton' takes tensors on 'cuda', got one on 'cpu'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
