"""The matrix product on the CPU: its reference bit for bit, every layout, gradients, torch's own checks, bad input."""

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
from samebits.ops.matmul import linear, matmul, matmul_accumulate_

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1, 1), (1, 300, 37), (2, 64, 5), (13, 257, 33), (33, 100, 70), (65, 513, 31))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def layouts(matrix: Tensor) -> dict[str, Tensor]:
    """The same matrix lying differently in memory."""
    rows, columns = matrix.shape
    wide = torch.zeros(rows, 2 * columns + 3, dtype=matrix.dtype)
    wide[:, 3:][:, ::2] = matrix
    padded = torch.zeros(rows, columns + 5, dtype=matrix.dtype)
    padded[:, 1 : columns + 1] = matrix
    reversed_rows = matrix.flip(0).contiguous()
    return {
        "row-major": matrix.contiguous(),
        "column-major": matrix.T.contiguous().T,
        "every second": wide[:, 3:][:, ::2],
        "padded rows": padded[:, 1 : columns + 1],
        "offset": torch.cat([matrix.new_zeros(1), reversed_rows.flip(0).reshape(-1)])[1:].view(rows, columns),
    }


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, NaN meeting NaN."""
    for shape in SHAPES:
        rows, depth, columns = shape
        x, weight = tensor(recipe, (rows, depth), 1, dtype), tensor(recipe, (columns, depth), 2, dtype)
        bias = tensor("normal", (columns,), 3, dtype)
        for given in (None, bias):
            difference = compare(linear(x, weight, given), linear(x, weight, given, backend="reference"))
            assert difference is None, f"{shape} bias={given is not None}: {difference}"


def test_layouts_do_not_matter() -> None:
    """Every pair of layouts gives the bits of the contiguous one."""
    for dtype, (rows, depth, columns) in itertools.product(DTYPES, ((1, 129, 40), (17, 100, 70))):
        a, b = tensor("cancelling", (rows, depth), 4, dtype), tensor("cancelling", (depth, columns), 5, dtype)
        expected = matmul(a, b)
        for (left_name, left), (right_name, right) in itertools.product(layouts(a).items(), layouts(b).items()):
            difference = compare(matmul(left, right), expected)
            assert difference is None, f"{dtype} {left_name} {right_name}: {difference}"
    overlapping = torch.arange(40, dtype=torch.float32).as_strided((8, 16), (2, 1))
    assert compare(matmul(overlapping, overlapping.T), matmul(overlapping.clone(), overlapping.T.clone())) is None
    expanded = torch.randn(1, 9).expand(5, 9)
    assert compare(matmul(expanded, expanded.T), matmul(expanded.clone(), expanded.T.clone())) is None


def test_threads_and_instruction_sets_do_not_matter() -> None:
    """baseline == avx2 == avx512, for 1 to 9 threads."""
    a, b = tensor("cancelling", (70, 600), 6), tensor("cancelling", (600, 130), 7)
    with launching(threads=1, instruction_set="baseline"):
        expected, expected_row = matmul(a, b), matmul(a[:1], b)
    for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 3, 9)):
        with launching(threads=threads, instruction_set=instruction_set):
            assert compare(matmul(a, b), expected) is None
            assert compare(matmul(a[:1], b), expected_row) is None


def test_a_changed_order_is_noticed() -> None:
    """Planted fault: the same sum run backwards."""
    a, b = tensor("cancelling", (5, 600), 6), tensor("cancelling", (600, 13), 7)
    assert compare(matmul(a.flip(1), b.flip(0)), matmul(a, b)) is not None


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_chains(dtype: torch.dtype) -> None:
    """dX, dW and the bias gradient equal the reference's, for leading axes too."""
    x, weight, bias = (
        tensor("normal", shape, seed, dtype).requires_grad_()
        for seed, shape in enumerate([(3, 7, 40), (11, 40), (11,)])
    )
    dy = tensor("normal", (3, 7, 11), 9, dtype)
    ours = torch.autograd.grad(linear(x, weight, bias), (x, weight, bias), dy)
    reference = torch.autograd.grad(linear(x, weight, bias, backend="reference"), (x, weight, bias), dy)
    for name, left, right in zip(("x", "weight", "bias"), ours, reference, strict=True):
        assert compare(left, right) is None, name
        assert left.shape == right.shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chain_resumes(dtype: torch.dtype) -> None:
    """dW in one pass == dW over any cut of the rows into micro-batches."""
    x, dy = tensor("cancelling", (97, 40), 1, dtype), tensor("cancelling", (97, 24), 2, dtype)
    whole = matmul_accumulate_(torch.zeros(24, 40), dy.T, x)
    for cuts in ([16], [1, 2, 3, 50], [96], [32, 64], list(range(1, 97))):
        pieces = torch.zeros(24, 40)
        for rows in torch.arange(97).tensor_split(cuts):
            matmul_accumulate_(pieces, dy[rows].T, x[rows])
        assert compare(pieces, whole) is None, cuts
    assert compare(matmul(dy.T, x), whole.to(dtype)) is None


def test_rounding_between_micro_batches_is_noticed() -> None:
    """Planted fault: the accumulator is stored in bfloat16 between two micro-batches."""
    x, dy = tensor("normal", (32, 40), 1), tensor("normal", (32, 24), 2)
    whole = matmul_accumulate_(torch.zeros(24, 40), dy.T, x)
    half = matmul_accumulate_(torch.zeros(24, 40), dy[:16].T, x[:16]).bfloat16().float()
    assert compare(matmul_accumulate_(half, dy[16:].T, x[16:]), whole) is not None


def test_torch_accepts_the_operators() -> None:
    """opcheck: schema, autograd, fake tensors, dynamic compilation; contiguous, transposed, with and without bias."""
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((6, 33), (20, 33), (20,)))
    for a in (x, torch.randn(33, 6, requires_grad=True).T):
        for given in (None, bias):
            torch.library.opcheck(torch.ops.samebits.gemm.default, (a, weight.T, given, "cpu"))
    torch.library.opcheck(
        torch.ops.samebits.gemm_accumulate_.default, (torch.zeros(6, 20), x.detach(), weight.detach().T, "cpu")
    )


def test_gradcheck() -> None:
    """The gradient formulas, in float64 on the reference path."""
    x, weight, bias = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 3), (5, 3), (5,)))
    assert gradcheck(lambda *given: linear(*given, backend="reference"), (x, weight, bias))
    assert gradcheck(lambda *given: matmul(*given, backend="reference"), (x, weight.T))


def test_compiled_equals_eager() -> None:
    """torch.compile keeps the bits of output and gradients, for several row counts of one compiled graph."""
    weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((20, 33), (20,)))
    compiled = torch.compile(lambda x: torch.relu(linear(x, weight, bias)), dynamic=True)
    for rows in (2, 5, 64):
        x, dy = torch.randn(rows, 33, requires_grad=True), torch.randn(rows, 20)
        eager_out, compiled_out = torch.relu(linear(x, weight, bias)), compiled(x)
        assert compare(compiled_out, eager_out) is None
        eager = torch.autograd.grad(eager_out, (x, weight, bias), dy)
        for left, right in zip(torch.autograd.grad(compiled_out, (x, weight, bias), dy), eager, strict=True):
            assert compare(left, right) is None


def test_zero_sizes() -> None:
    assert matmul(torch.ones(0, 5), torch.ones(5, 3)).shape == (0, 3)
    assert matmul(torch.ones(4, 5), torch.ones(5, 0)).shape == (4, 0)
    assert linear(torch.ones(2, 0, 5), torch.ones(3, 5)).shape == (2, 0, 3)
    assert compare(matmul(torch.ones(4, 0), torch.ones(0, 3)), torch.zeros(4, 3)) is None
    assert (
        compare(linear(torch.ones(2, 0), torch.ones(3, 0), torch.arange(3.0)), torch.arange(3.0).expand(2, 3)) is None
    )
    x = torch.ones(0, 5, requires_grad=True)
    weight = torch.ones(3, 5, requires_grad=True)
    linear(x, weight).sum().backward()
    assert x.grad is not None and x.grad.shape == (0, 5)
    assert weight.grad is not None and compare(weight.grad, torch.zeros(3, 5)) is None


@pytest.mark.long
def test_more_than_two_to_the_31_elements() -> None:
    """Offsets are 64 bits wide: the last row of a and the last row of b start 2^31 elements into their memory."""
    apart, rows = 2**25, 65
    # Never touched but for the rows: the operating system keeps the rest as one page of zeros.
    memory = torch.zeros((rows - 1) * apart + 64)
    wide = memory.as_strided((rows, 64), (apart, 1))
    wide.copy_(tensor("cancelling", (rows, 64), 1))
    small = wide.clone()
    assert compare(matmul(wide, small.T), matmul(small, small.T)) is None
    assert compare(matmul(small.T, wide), matmul(small.T, small)) is None
    assert compare(matmul(small[:1, :], wide.T), matmul(small[:1, :], small.T)) is None


ONE = torch.ones(2, 3)
BAD = {
    "inner sizes": (
        lambda: matmul(ONE, torch.ones(4, 2)),
        ValueError,
        "the last axis of a is 3, the first axis of b is 4; they must agree",
    ),
    "dimensions": (lambda: matmul(ONE, torch.ones(3)), ValueError, r"b has shape \(3,\); allowed: 2 dimensions"),
    "scalar": (
        lambda: matmul(torch.tensor(1.0), torch.ones(1, 1)),
        ValueError,
        r"a has shape \(\); allowed: at least 1 dimension",
    ),
    "mixed dtypes": (
        lambda: matmul(ONE, ONE.T.half()),
        ValueError,
        "b has dtype float16, a has float32; they must agree",
    ),
    "integers": (
        lambda: matmul(ONE.int(), ONE.T.int()),
        ValueError,
        "a has dtype int32; allowed with backend='cpu': float32, bfloat16, float16",
    ),
    "float64": (
        lambda: matmul(ONE.double(), ONE.T.double()),
        ValueError,
        "a has dtype float64; allowed with backend='cpu'",
    ),
    "bias length": (
        lambda: linear(ONE, ONE, torch.ones(5)),
        ValueError,
        "the length of bias is 5, the first axis of weight is 2",
    ),
    "unknown backend": (
        lambda: matmul(ONE, ONE.T, backend="mkl"),
        ValueError,
        "unknown backend='mkl'; allowed: cpu, triton, reference",
    ),
    "wrong device": (
        lambda: matmul(ONE, ONE.T, backend="triton"),
        ValueError,
        "backend='triton' takes tensors on 'cuda', got one on 'cpu'",
    ),
    "meta device": (
        lambda: matmul(ONE.to("meta"), ONE.T),
        ValueError,
        "no backend for device 'meta'; allowed: cpu, cuda",
    ),
    "sparse": (lambda: matmul(ONE.to_sparse(), ONE.T), ValueError, "a has layout torch.sparse_coo; allowed: strided"),
    "no tensor": (lambda: matmul(ONE, [[1.0]]), TypeError, "b is a list; allowed: a torch.Tensor"),
    "accumulator dtype": (
        lambda: matmul_accumulate_(ONE.half(), ONE, ONE.T),
        ValueError,
        "accumulator has dtype float16; allowed: float32",
    ),
    "accumulator shape": (
        lambda: matmul_accumulate_(ONE, ONE, ONE.T),
        ValueError,
        r"accumulator has shape \(2, 3\); allowed: \(2, 2\)",
    ),
    "accumulator strides": (
        lambda: matmul_accumulate_(torch.ones(2, 4)[:, ::2], ONE, ONE.T),
        ValueError,
        "allowed: contiguous",
    ),
    "accumulator memory": (
        lambda: matmul_accumulate_(SQUARE, SQUARE, torch.ones(2, 2)),
        ValueError,
        "accumulator shares its memory with a",
    ),
}
SQUARE = torch.ones(2, 2)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, kind, text = BAD[case]
    with pytest.raises(kind, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
    assert bool((SQUARE == 1).all())


def test_the_reference_is_the_formula() -> None:
    """The reference against float64, within the bound of its chain."""
    a, b = tensor("normal", (9, 300), 1), tensor("normal", (300, 8), 2)
    exact = a.double() @ b.double()
    bound = 300 * 2.0**-24 / (1 - 300 * 2.0**-24) * (a.double().abs() @ b.double().abs())
    error = (matmul(a, b, backend="reference").double() - exact).abs()
    assert bool((error <= bound).all())
    assert np.isfinite(error.numpy()).all()


def test_float8_is_refused_with_a_reason() -> None:
    x = torch.ones(2, 16).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="a has dtype float8_e4m3fn, for no order of its sums is declared; allowed"):
        matmul(x, x.T)
