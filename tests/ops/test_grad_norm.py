"""Gradient norms on the CPU: their reference bit for bit, lists, clipping, torch's own functions, bad input."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from samebits import native
from samebits.contracts.orders import sum_error
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.grad_norm import clip_grad_norm_, grad_norm, grad_square_sum
from samebits.ops.rounding import FLOAT32_ROUNDOFF

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")
# More than one piece, a whole number of pieces, no element, one element, a matrix with a tail.
SHAPES = ((65_537,), (2, 32_768), (0, 3), (), (33, 70))


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (
        torch.from_numpy(make(recipe, shape or (1,), seed, str(dtype).removeprefix("torch."))).reshape(shape).to(dtype)
    )


def listed(recipe: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [tensor(recipe, shape, seed, dtype) for seed, shape in enumerate(SHAPES)]


def with_gradients(grads: list[Tensor]) -> list[Tensor]:
    parameters = [torch.zeros_like(grad) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad.clone()
    return parameters


def gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(compare(a, b) is None for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit: sum of squares, norm, clipped gradients."""
    grads = listed(recipe, dtype)
    assert compare(grad_square_sum(grads), grad_square_sum(grads, backend="reference")) is None
    assert compare(grad_norm(grads), grad_norm(grads, backend="reference")) is None
    for max_norm in (0.0, 1.0, 1e30):
        ours, reference = with_gradients(grads), with_gradients(grads)
        norm = clip_grad_norm_(ours, max_norm)
        assert compare(norm, clip_grad_norm_(reference, max_norm, backend="reference")) is None
        assert equal(gradients(ours), gradients(reference)), max_norm


def test_mixed_dtypes_equal_the_reference() -> None:
    grads = [tensor("normal", (700,), seed, dtype) for seed, dtype in enumerate(DTYPES)]
    assert compare(grad_norm(grads), grad_norm(grads, backend="reference")) is None
    widened = [grad.float() for grad in grads]
    assert compare(grad_norm(grads), grad_norm(widened)) is None


def test_more_pieces_than_lanes() -> None:
    """300 tensors: the sums of pieces go round the lanes once and again."""
    grads = [tensor("normal", (5,), seed) for seed in range(300)]
    assert compare(grad_norm(grads), grad_norm(grads, backend="reference")) is None


def test_threads_and_instruction_sets_do_not_matter() -> None:
    """baseline == avx2 == avx512, for 1 to 9 threads: norm and clipped gradients."""
    grads = listed("wide")
    expected: list[Tensor] = []
    for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 3, 9)):
        parameters = with_gradients(grads)
        with launching(threads=threads, instruction_set=instruction_set):
            norm = clip_grad_norm_(parameters, 0.5)
        found = [norm, *gradients(parameters)]
        expected = expected or found
        assert equal(found, expected), (instruction_set, threads)


def test_the_order_of_the_list_is_part_of_the_order() -> None:
    """Another order of tensors, or the same numbers cut into other tensors, is another declared sum."""
    grads = [tensor("normal", (1000,), seed) * 2.0 ** (seed % 16) for seed in range(300)]
    norms = {float(grad_square_sum(given)) for given in (grads, grads[::-1], [torch.cat(grads)])}
    assert len(norms) > 1
    assert max(norms) - min(norms) <= 2 * sum_error("lanes-256", 65_536) * max(norms)


def test_layouts_do_not_matter() -> None:
    """Transposed, strided and contiguous memory of the same numbers: the same norm and the same clipped numbers."""
    plain = tensor("normal", (300, 40), 1)
    layouts = (plain.T.contiguous().T, torch.cat([plain, plain], 1)[:, :40], torch.stack([plain, plain], 2)[:, :, 0])
    expected = with_gradients([plain])
    norm = clip_grad_norm_(expected, 1.0)
    for given in layouts:
        assert not given.is_contiguous()
        assert compare(grad_norm([given]), norm) is None
        parameter = torch.zeros(300, 40).as_strided(given.size(), given.stride() if given.stride(0) == 1 else (40, 1))
        parameter.grad = given
        assert compare(clip_grad_norm_(parameter, 1.0), norm) is None
        assert compare(given, gradients(expected)[0]) is None


@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_against_torch(max_norm: float) -> None:
    """The norm and the gradients of torch.nn.utils.clip_grad_norm_, within the rounding of both."""
    ours, theirs = with_gradients(listed("normal")), with_gradients(listed("normal"))
    norm = clip_grad_norm_(ours, max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    # Both sums of squares are within a chain of lanes, or torch's vectors of four, of the exact one.
    relative = sum_error("chain-1", 2 * 65_536) + 8 * FLOAT32_ROUNDOFF
    assert abs(float(norm) - float(expected)) <= relative * float(expected)
    for left, right in zip(gradients(ours), gradients(theirs), strict=True):
        assert bool(((left - right).abs() <= 2 * relative * right.abs()).all())


def test_a_small_norm_changes_nothing() -> None:
    grads = [tensor("normal", (70,), 1), tensor("zeros_signed", (70,), 2)]
    parameters = with_gradients(grads)
    clip_grad_norm_(parameters, 1e9)
    assert equal(gradients(parameters), grads)


def test_nothing_to_measure() -> None:
    """No tensors, no gradients, no elements: 0."""
    zero = torch.zeros(())
    assert compare(grad_norm([]), zero) is None
    assert compare(grad_square_sum([]), zero) is None
    assert compare(grad_norm([torch.zeros(0, 3)]), zero) is None
    assert compare(clip_grad_norm_([torch.ones(3)], 1.0), zero) is None
    empty = with_gradients([torch.zeros(0)])
    assert compare(clip_grad_norm_(empty, 1.0), zero) is None
    still = with_gradients([torch.zeros(3)])
    assert compare(clip_grad_norm_(still, 1.0), zero) is None
    assert equal(gradients(still), [torch.zeros(3)])


@pytest.mark.parametrize("special", [math.nan, math.inf])
def test_norms_that_are_not_finite(special: float) -> None:
    """They are returned and stay visible; with error_if_nonfinite nothing is changed."""
    grads = [torch.ones(3), torch.tensor([1.0, special])]
    parameters = with_gradients(grads)
    for call in (
        lambda: grad_norm(grads, error_if_nonfinite=True),
        lambda: clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True),
    ):
        with pytest.raises(RuntimeError, match=f"the norm is {special}; allowed with error_if_nonfinite: finite"):
            call()
    assert equal(gradients(parameters), grads)
    norm = clip_grad_norm_(parameters, 1.0)
    assert not math.isfinite(norm)
    clean, spoiled = gradients(parameters)
    assert bool(spoiled[1].isnan())
    assert bool(clean.isnan().all()) if math.isnan(special) else compare(clean, torch.zeros(3)) is None


def test_parameters_of_a_model() -> None:
    """What users pass: a generator of parameters, some without a gradient."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    model(torch.ones(2, 8)).sum().backward()
    model[0].bias.grad = None
    wanted = grad_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert compare(clip_grad_norm_(model.parameters(), 1e-3), wanted) is None
    clipped = grad_norm([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert float(clipped) <= 1e-3 * (1 + 64 * FLOAT32_ROUNDOFF)


def test_torch_accepts_the_operators() -> None:
    tensors, operators = [torch.randn(6, 5), torch.randn(3)], torch.ops.samebits
    torch.library.opcheck(operators.grad_square_sum.default, (tensors, "cpu"))
    torch.library.opcheck(operators.grad_norm.default, (tensors, "cpu"))
    torch.library.opcheck(operators.grad_norm_clip_.default, (tensors, torch.tensor(3.0), 1.0, "cpu"))


@torch.no_grad()
def test_compiled_equals_eager() -> None:
    compiled = torch.compile(lambda a, b: grad_norm([a * 2, b]) * 3, fullgraph=True, dynamic=True)
    for size in (3, 64):
        a, b = torch.rand(size, 5), torch.rand(7)
        assert compare(compiled(a, b), grad_norm([a * 2, b]) * 3) is None


ONES = torch.ones(3)
BAD = {
    "integers": (lambda: grad_norm([ONES, ONES.int()]), "grad_norm: tensor 1 has dtype int32; allowed: float32"),
    "float64": (
        lambda: grad_square_sum([ONES.double()]),
        "grad_square_sum: tensor 0 has dtype float64; allowed: float32",
    ),
    "sparse": (lambda: grad_norm([ONES.to_sparse()]), r"tensors\[0\] has layout torch.sparse_coo; allowed: strided"),
    "max_norm": (lambda: clip_grad_norm_(ONES, -1.0), "clip_grad_norm_: max_norm is -1.0; allowed: a finite number"),
    "max_norm NaN": (lambda: clip_grad_norm_(ONES, math.nan), "max_norm is nan; allowed: a finite number, at least 0"),
    "max_norm infinite": (lambda: clip_grad_norm_(ONES, math.inf), "max_norm is inf; allowed: a finite number"),
    "wrong device": (
        lambda: grad_norm([ONES], backend="triton"),
        "backend='triton' takes tensors on 'cuda', got one on",
    ),
    "devices": (lambda: grad_norm([ONES, ONES.to("meta")]), "tensor 1 is on meta, tensor 0 on cpu; they must agree"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
