"""The distillation loss on the CPU: its reference bit for bit, its exact ends, torch's checks, bad input."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.distill_loss import distill_loss
from samebits.ops.rounding import FLOAT32_ROUNDOFF

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (3, 7), (5, 257), (9, 1031))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")
MIXES = ((1.0, 1.0), (3.0, 0.5), (1.0, 0.25), (2.0, 0.0))


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def targets_of(shape: tuple[int, ...]) -> Tensor:
    """Spread over the vocabulary; the second row of three is ignored."""
    row = torch.arange(shape[0])
    return torch.where(row % 3 == 1, -100, row * 97 % shape[1])


def loss_and_gradient(
    student: Tensor, teacher: Tensor, targets: Tensor | None, dy: Tensor | None = None, **options: object
) -> dict[str, Tensor]:
    leaf = student.detach().requires_grad_()
    loss = distill_loss(leaf, teacher, targets, **options)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(loss, leaf, dy)
    return {"loss": loss.detach(), "gradient": gradient}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, forward and backward, for every mix of the two terms."""
    for shape, (temperature, alpha) in itertools.product(SHAPES, MIXES):
        student, teacher = tensor(recipe, shape, 1, dtype), tensor(recipe, shape, 2, dtype)
        dy, targets = tensor("normal", shape[:1], 3), targets_of(shape)
        options = {"temperature": temperature, "alpha": alpha, "reduction": "none"}
        ours = loss_and_gradient(student, teacher, targets, dy, **options)
        reference = loss_and_gradient(student, teacher, targets, dy, backend="reference", **options)
        for name in reference:
            difference = compare(ours[name], reference[name])
            assert difference is None, f"{shape} T={temperature} alpha={alpha} {name}: {difference}"


def test_threads_and_instruction_sets_do_not_matter() -> None:
    """baseline == avx2 == avx512, for 1 to 9 threads, forward and backward, sum over rows included."""
    student, teacher, targets = tensor("normal", (41, 700), 1), tensor("normal", (41, 700), 2), targets_of((41, 700))
    with launching(threads=1, instruction_set="baseline"):
        expected = loss_and_gradient(student, teacher, targets, temperature=3.0, alpha=0.5)
    for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 3, 9)):
        with launching(threads=threads, instruction_set=instruction_set):
            found = loss_and_gradient(student, teacher, targets, temperature=3.0, alpha=0.5)
        for name, value in found.items():
            assert compare(value, expected[name]) is None, (instruction_set, threads, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_distributions_have_no_divergence(dtype: torch.dtype) -> None:
    """KL(P || P) is +0 and its gradient 0, bit for bit, with forbidden tokens among them."""
    logits = tensor("normal", (6, 517), 1, dtype) * 8
    logits[:, ::5] = -torch.inf
    for temperature in (1.0, 2.0, 3.0):
        found = loss_and_gradient(
            logits, logits.clone(), None, torch.ones(6), temperature=temperature, reduction="none"
        )
        assert compare(found["loss"], torch.zeros(6)) is None
        assert compare(found["gradient"], torch.zeros_like(logits)) is None


def test_the_ends_of_alpha_are_exact() -> None:
    """alpha 0 is CE where KL is infinite; alpha 1 is T^2 KL and looks at no target but to ignore it."""
    student, teacher = tensor("normal", (8, 300), 1), tensor("normal", (8, 300), 2)
    targets = torch.arange(8) + 20
    student[:, 5] = -torch.inf
    only_entropy = distill_loss(student, teacher, targets, alpha=0.0, temperature=2.0, reduction="none")
    assert bool(only_entropy.isfinite().all())
    assert compare(only_entropy, distill_loss(student, student.clone(), targets, alpha=0.0, reduction="none")) is None
    only_divergence = distill_loss(student, teacher, temperature=2.0, reduction="none")
    assert bool((only_divergence == torch.inf).all())
    finite = teacher.clone()
    finite[:, 5] = -torch.inf
    # T^2 is 4: the product is exact, so that both weights show the same KL.
    quarter = distill_loss(student, finite, targets, temperature=2.0, alpha=1.0, reduction="none")
    assert compare(quarter, distill_loss(student, finite, temperature=2.0, reduction="none")) is None
    half = distill_loss(student, finite, targets, temperature=2.0, alpha=0.5, reduction="none")
    mean = (quarter.double() + only_entropy.double()) / 2
    assert bool(((half - mean).abs() <= 4 * FLOAT32_ROUNDOFF * mean.abs()).all())


def test_divergence_is_hardly_negative() -> None:
    """KL >= -(its rounding): for 2000 pairs of near distributions over 32 tokens."""
    logits = tensor("normal", (2000, 32), 1) * 4
    near = logits + tensor("normal", (2000, 32), 2) * 2.0**-12
    assert float(distill_loss(near, logits, reduction="none").min()) >= -64 * FLOAT32_ROUNDOFF


def test_two_tokens_over_a_grid() -> None:
    """V = 2: 16 values a logit, T in {1, 2, 4}, alpha in {0, 1/2, 1}: all 196,608 x 3 cases near float64."""
    grid = torch.linspace(-12, 12, 16)
    student = torch.cartesian_prod(grid, grid, grid, grid)
    student, teacher = student[:, :2].contiguous(), student[:, 2:].contiguous()
    targets = torch.arange(len(student)) % 2
    for temperature, alpha in itertools.product((1.0, 2.0, 4.0), (0.0, 0.5, 1.0)):
        found = distill_loss(student, teacher, targets, temperature=temperature, alpha=alpha, reduction="none").double()
        exact = distill_loss(
            student.double(),
            teacher.double(),
            targets,
            temperature=temperature,
            alpha=alpha,
            reduction="none",
            backend="reference",
        )
        # Logits up to 12 over 1 to 4, a gap up to 24; T^2 up to 16: a few roundings of 24 T^2.
        assert float((found - exact).abs().max()) <= 8 * FLOAT32_ROUNDOFF * 24 * temperature**2


def test_against_torch() -> None:
    """The same numbers as kl_div and cross_entropy of torch, within their float32 rounding."""
    student, teacher, targets = tensor("normal", (33, 700), 1), tensor("normal", (33, 700), 2), targets_of((33, 700))
    active = targets != -100
    log_q, log_p = ((x[active] / 2.0).log_softmax(-1) for x in (student, teacher))
    divergence = torch.nn.functional.kl_div(log_q, log_p, reduction="sum", log_target=True) * 4.0
    expected = 0.3 * divergence / active.sum() + 0.7 * torch.nn.functional.cross_entropy(student, targets)
    found = distill_loss(student, teacher, targets, temperature=2.0, alpha=0.3)
    # Logarithms below 16, 700 terms in blocks: 64 roundings of the largest is more than either side can lose.
    assert abs(float(found - expected)) <= 64 * FLOAT32_ROUNDOFF * 16


def test_reductions_and_micro_batches_agree() -> None:
    """mean == sum * (1 / rows not ignored); parts with one denominator resume the gradient of the whole."""
    student, teacher, targets = tensor("normal", (48, 300), 1), tensor("normal", (48, 300), 2), targets_of((48, 300))
    active = int((targets != -100).sum())
    whole = loss_and_gradient(student, teacher, targets, alpha=0.5)
    losses = distill_loss(student, teacher, targets, alpha=0.5, reduction="none")
    chain = torch.zeros(())
    for loss in losses:
        chain = chain + loss
    assert compare(distill_loss(student, teacher, targets, alpha=0.5, reduction="sum"), chain) is None
    assert compare(whole["loss"], chain * (torch.ones(()) / active)) is None
    parts = [
        loss_and_gradient(student[rows], teacher[rows], targets[rows], alpha=0.5, denominator=active)["gradient"]
        for rows in (slice(0, 16), slice(16, 17), slice(17, 48))
    ]
    assert compare(torch.cat(parts), whole["gradient"]) is None


def test_all_ignored_and_no_rows() -> None:
    student, teacher = tensor("infinite", (3, 300), 1), tensor("normal", (3, 300), 2)
    found = loss_and_gradient(student, teacher, torch.full((3,), -100), alpha=0.5)
    assert compare(found["loss"], torch.zeros(())) is None
    assert compare(found["gradient"], torch.zeros(3, 300)) is None
    empty = loss_and_gradient(student[:0], teacher[:0], torch.zeros(0, dtype=torch.int64), alpha=0.5)
    assert compare(empty["loss"], torch.zeros(())) is None
    assert empty["gradient"].shape == (0, 300)
    assert distill_loss(student[:0], teacher[:0], reduction="none").shape == (0,)


def test_a_poisoned_row_stays_alone() -> None:
    student, teacher = tensor("normal", (4, 300), 1), tensor("normal", (4, 300), 2)
    dy, targets = torch.ones(4), torch.arange(4)
    expected = loss_and_gradient(student, teacher, targets, dy, alpha=0.5, reduction="none")
    student[2, 77] = torch.nan
    poisoned = loss_and_gradient(student, teacher, targets, dy, alpha=0.5, reduction="none")
    for name, value in poisoned.items():
        assert compare(value[[0, 1, 3]], expected[name][[0, 1, 3]]) is None, name
        assert bool(value[2].isnan().all()), name


def test_layouts_do_not_matter() -> None:
    student, teacher = tensor("normal", (2, 5, 40), 1), tensor("normal", (2, 5, 40), 2)
    expected = distill_loss(student, teacher, reduction="none")
    assert expected.shape == (2, 5)
    turned = student.transpose(0, 1).contiguous().transpose(0, 1)
    assert (
        compare(distill_loss(turned, torch.cat([teacher, teacher], -1)[..., :40], reduction="none"), expected) is None
    )


def test_torch_accepts_the_operators() -> None:
    student, teacher, targets = torch.randn(6, 33, requires_grad=True), torch.randn(33, 6).T, targets_of((6, 33))
    operators = torch.ops.samebits
    torch.library.opcheck(operators.distill_loss.default, (student, teacher, targets, 2.0, 0.5, -100, "cpu"))
    torch.library.opcheck(operators.distill_loss.default, (student, teacher, None, 1.0, 1.0, -100, "cpu"))
    losses, statistics = operators.distill_loss(student.detach(), teacher, targets, 2.0, 0.5, -100, "cpu")
    torch.library.opcheck(
        operators.distill_loss_dstudent.default,
        (losses, student.detach(), teacher, targets, statistics, 2.0, 0.5, -100, "cpu"),
    )
    for given, denominator in ((targets, None), (None, None), (targets, 7.0)):
        torch.library.opcheck(operators.distill_loss_share.default, (losses, given, -100, denominator))


def test_gradcheck() -> None:
    """The gradient, in float64 on the reference path."""
    student, teacher = torch.randn(4, 6, dtype=torch.float64, requires_grad=True), torch.randn(4, 6).double()
    for temperature, alpha in MIXES:
        assert gradcheck(
            lambda x, t=temperature, a=alpha: distill_loss(
                x, teacher, targets_of((4, 6)), temperature=t, alpha=a, backend="reference"
            ),
            (student,),
        )


def test_compiled_equals_eager() -> None:
    def loss(student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        return distill_loss(student, teacher, targets, temperature=2.0, alpha=0.5) * 2

    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    for rows in (2, 5, 64):
        student, teacher = torch.randn(rows, 48, requires_grad=True), torch.randn(rows, 48)
        targets = targets_of((rows, 48))
        eager, found = loss(student, teacher, targets), compiled(student, teacher, targets)
        assert compare(found, eager) is None
        pair = (torch.autograd.grad(each, student)[0] for each in (found, eager))
        assert compare(*pair) is None


ROWS = torch.ones(2, 3)
LABELS = torch.zeros(2, dtype=torch.int64)
BAD = {
    "teacher shape": (
        lambda: distill_loss(ROWS, ROWS.T),
        r"teacher_logits has shape \(3, 2\), student_logits \(2, 3\)",
    ),
    "no vocabulary": (
        lambda: distill_loss(torch.ones(2, 0), torch.ones(2, 0)),
        r"student_logits has shape \(2, 0\); allowed: a last axis of at least 1",
    ),
    "mixed dtypes": (lambda: distill_loss(ROWS, ROWS.half()), "teacher_logits has dtype float16, student_logits has"),
    "integers": (lambda: distill_loss(ROWS.int(), ROWS.int()), "student_logits has dtype int32; allowed"),
    "teacher asks": (
        lambda: distill_loss(ROWS, ROWS.clone().requires_grad_()),
        "teacher_logits requires a gradient; allowed: constants",
    ),
    "no targets": (lambda: distill_loss(ROWS, ROWS, alpha=0.5), "alpha is 0.5 and targets is None; allowed without"),
    "float targets": (lambda: distill_loss(ROWS, ROWS, torch.ones(2)), "targets has dtype float32; allowed: int64"),
    "targets shape": (lambda: distill_loss(ROWS, ROWS, LABELS[:1]), r"targets has shape \(1,\) on cpu; allowed"),
    "target": (
        lambda: distill_loss(ROWS, ROWS, torch.tensor([0, 3])),
        "target 3 in row 1; allowed: 0 to 2, or ignore_index=-100",
    ),
    "negative target": (lambda: distill_loss(ROWS, ROWS, torch.tensor([-1, 0])), "target -1 in row 0; allowed"),
    "temperature": (lambda: distill_loss(ROWS, ROWS, temperature=0.0), r"temperature is 0.0; allowed: 2\^-20 to 2\^20"),
    "temperature NaN": (lambda: distill_loss(ROWS, ROWS, temperature=math.nan), "temperature is nan; allowed"),
    "alpha": (lambda: distill_loss(ROWS, ROWS, alpha=1.5), "alpha is 1.5; allowed: 0 to 1"),
    "reduction": (lambda: distill_loss(ROWS, ROWS, reduction="batchmean"), "reduction is 'batchmean'; allowed: mean"),
    "denominator": (lambda: distill_loss(ROWS, ROWS, denominator=0.0), "denominator is 0.0 with reduction='mean'"),
    "useless denominator": (
        lambda: distill_loss(ROWS, ROWS, denominator=2.0, reduction="sum"),
        "denominator is 2.0 with reduction='sum'; allowed: finite, above 0, with reduction='mean'",
    ),
    "wrong device": (lambda: distill_loss(ROWS, ROWS, backend="triton"), "backend='triton' takes tensors on 'cuda'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
