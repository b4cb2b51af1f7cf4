"""The grouped product has the bits of matmul, row by row and expert by expert, wherever an expert's rows stand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import samebits.ops
from samebits.native.launch_numbers import cpu_launches, launching
from samebits.numerics.bits import same_bits
from samebits.ops.capture import capture
from samebits.ops.grouped_matmul import grouped_matmul, grouped_matmul_accumulate_
from samebits.ops.matmul import matmul, matmul_accumulate_

FORMATS = [torch.float32, torch.bfloat16, torch.float16]
M, K, N, E = 67, 53, 45, 5


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def experts(rows: int = M, count: int = E, *, without: int | None = 3) -> Tensor:
    """Any order; one expert has one row, another none."""
    chosen = torch.randint(0, count, (rows,), generator=torch.Generator().manual_seed(7))
    chosen[chosen == 1] = 0
    chosen[rows // 2] = 1
    return chosen if without is None else torch.where(chosen == without, 2, chosen)


def made(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return drawn(1, M, K, dtype=dtype), drawn(2, E, K, N, dtype=dtype), experts(), drawn(3, M, N, dtype=dtype)


def gradients(x: Tensor, weight: Tensor, expert: Tensor, dy: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = grouped_matmul(x, weight, expert, **options)
    dx, dweight = torch.autograd.grad(y, (x, weight), dy)
    return y.detach(), dx, dweight


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_row_has_the_bits_of_its_own_product(dtype: torch.dtype) -> None:
    x, weight, expert, dy = made(dtype)
    y, dx, _ = gradients(x, weight, expert, dy)
    for row, number in enumerate(expert.tolist()):
        assert same_bits(y[row : row + 1], matmul(x[row : row + 1], weight[number]))
        assert same_bits(dx[row : row + 1], matmul(dy[row : row + 1], weight[number].T))


@pytest.mark.parametrize("dtype", FORMATS)
def test_an_experts_gradient_has_the_bits_of_its_own_rows(dtype: torch.dtype) -> None:
    x, weight, expert, dy = made(dtype)
    *_, dweight = gradients(x, weight, expert, dy)
    for number in range(E):
        rows = expert == number
        assert same_bits(dweight[number], matmul(dy[rows].T, x[rows]).T)


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_expert_without_rows_gets_zeros(dtype: torch.dtype) -> None:
    x, weight, expert, dy = made(dtype)
    *_, dweight = gradients(x, weight, expert, dy)
    assert not dweight[3].any()
    assert not torch.signbit(dweight[3]).any()
    assert dweight[1].any()


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_reference_agrees(dtype: torch.dtype) -> None:
    x, weight, expert, dy = made(dtype)
    ours = gradients(x, weight, expert, dy)
    plain = gradients(x, weight, expert, dy, backend="reference")
    assert all(same_bits(one, other) for one, other in zip(ours, plain, strict=True))


def test_rows_in_another_order_give_outputs_in_that_order() -> None:
    x, weight, expert, dy = made(torch.float32)
    order = torch.randperm(M, generator=torch.Generator().manual_seed(4))
    y, dx, _ = gradients(x, weight, expert, dy)
    y2, dx2, _ = gradients(x[order], weight, expert[order], dy[order])
    assert same_bits(y2, y[order])
    assert same_bits(dx2, dx[order])


@pytest.mark.parametrize("dtype", FORMATS)
def test_strides_change_nothing(dtype: torch.dtype) -> None:
    x, weight, expert, dy = made(dtype)
    whole = gradients(x, weight, expert, dy)
    wide = torch.full((E, K + 3, 2 * N), torch.nan, dtype=dtype)
    wide[:, 1 : K + 1, ::2] = weight
    others = [
        (x.T.contiguous().T, weight, expert, dy),
        (x, weight.transpose(1, 2).contiguous().transpose(1, 2), expert, dy.T.contiguous().T),
        (x, weight.permute(1, 2, 0).contiguous().permute(2, 0, 1), expert.int(), dy),
        (x, wide[:, 1 : K + 1, ::2], torch.stack([expert, expert], 1)[:, 0], dy),
    ]
    for given in others:
        assert all(same_bits(one, other) for one, other in zip(whole, gradients(*given), strict=True))


def test_the_gradient_has_the_memory_order_of_the_weight() -> None:
    x, weight, expert, dy = made(torch.float32)
    as_linear = weight.transpose(1, 2).contiguous().requires_grad_()
    y = grouped_matmul(x, as_linear.transpose(1, 2), expert)
    (gradient,) = torch.autograd.grad(y, as_linear, dy)
    assert gradient.is_contiguous()
    assert same_bits(gradient, gradients(x, weight, expert, dy)[2].transpose(1, 2))


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_resumed_sum_has_the_bits_of_one_pass(dtype: torch.dtype) -> None:
    """On the CPU a chain takes one row at a time, so the batch may be cut anywhere."""
    x, weight, expert, dy = made(dtype)
    whole = grouped_matmul_accumulate_(torch.zeros(E, K, N), x, dy, expert)
    sums = torch.zeros(E, K, N)
    for rows in (slice(0, 1), slice(1, 30), slice(30, 30), slice(30, M)):
        grouped_matmul_accumulate_(sums, x[rows], dy[rows], expert[rows])
    assert same_bits(sums, whole)
    assert same_bits(whole.to(dtype), gradients(x, weight, expert, dy)[2])
    for number in range(E):
        own = expert == number
        assert same_bits(whole[number], matmul_accumulate_(torch.zeros(K, N), x[own].T, dy[own]))


def test_a_sum_that_was_rounded_between_is_noticed() -> None:
    """Planted: what a resumed sum is compared with can tell."""
    x, _, expert, dy = made(torch.float32)
    whole = grouped_matmul_accumulate_(torch.zeros(E, K, N), x, dy, expert)
    half = grouped_matmul_accumulate_(torch.zeros(E, K, N), x[:30], dy[:30], expert[:30]).bfloat16().float()
    assert not same_bits(grouped_matmul_accumulate_(half, x[30:], dy[30:], expert[30:]), whole)


@pytest.mark.parametrize("launch", cpu_launches(), ids=str)
def test_threads_and_instruction_sets_change_nothing(launch: dict[str, object]) -> None:
    x, weight, expert, dy = made(torch.bfloat16)
    whole = gradients(x, weight, expert, dy)
    with launching(**launch):
        assert all(same_bits(one, other) for one, other in zip(whole, gradients(x, weight, expert, dy), strict=True))


def test_blocks_of_rows_and_columns_change_nothing() -> None:
    """More rows and columns than one block of the kernel holds."""
    x, weight, expert = drawn(1, 1500, 3), drawn(2, 2, 3, 4200), experts(1500, 2, without=None)
    y = grouped_matmul(x, weight, expert)
    for number in range(2):
        assert same_bits(y[expert == number], matmul(x[expert == number], weight[number]))


def test_no_rows_and_no_depth() -> None:
    none = grouped_matmul(torch.ones(0, 4), torch.ones(2, 4, 3), torch.ones(0, dtype=torch.int64))
    assert none.shape == (0, 3)
    shallow = grouped_matmul(torch.ones(2, 0), torch.ones(2, 0, 3), torch.tensor([1, 0]))
    assert same_bits(shallow, torch.zeros(2, 3))
    y, dx, dweight = gradients(
        torch.ones(0, 4), torch.ones(2, 4, 3), torch.ones(0, dtype=torch.int64), torch.ones(0, 3)
    )
    assert (y.shape, dx.shape) == ((0, 3), (0, 4))
    assert same_bits(dweight, torch.zeros(2, 4, 3))


def test_a_captured_call_does_right_by_other_experts() -> None:
    x, weight, expert, _ = made(torch.float32)
    given = expert.clone()
    captured = capture(lambda: grouped_matmul(x, weight, given))
    for numbers in (expert.flip(0), torch.full_like(expert, 4), expert):
        given.copy_(numbers)
        assert same_bits(captured.replay(), grouped_matmul(x, weight, numbers))


def test_torch_accepts_the_operators() -> None:
    x, weight, expert, dy = made(torch.float32)
    x, weight = x[:5].requires_grad_(), weight.requires_grad_()
    rows, ends = torch.ops.samebits.expert_groups(expert[:5], E, "grouped_matmul")
    torch.library.opcheck(torch.ops.samebits.grouped_gemm, (x, weight, rows, ends, "cpu"))
    torch.library.opcheck(torch.ops.samebits.expert_groups, (expert, E, "grouped_matmul"))
    torch.library.opcheck(torch.ops.samebits.grouped_gemm_dweight, (x.detach(), dy[:5], None, ends.int(), "cpu"))
    torch.library.opcheck(
        torch.ops.samebits.grouped_gemm_accumulate_, (torch.zeros(E, K, N), x.detach(), dy[:5], rows, ends, "cpu")
    )


def test_rows_beyond_the_last_end_give_zeros() -> None:
    x, weight, _, dy = made(torch.float32)
    ends = torch.tensor([10, 10, 31, 40, 60], dtype=torch.int32)
    y = torch.ops.samebits.grouped_gemm(x, weight, None, ends, "cpu")
    assert same_bits(y[60:], torch.zeros(M - 60, N))
    assert same_bits(y[31:40], matmul(x[31:40], weight[3]))
    dweight = torch.ops.samebits.grouped_gemm_dweight(x, dy, None, ends, "cpu")
    assert same_bits(dweight[4], matmul(x[40:60].T, dy[40:60]))


@pytest.mark.parametrize("ends", [[5, 3], [5, M + 1], [-1, 5]])
def test_ends_that_are_no_groups_are_refused(ends: list[int]) -> None:
    with pytest.raises(RuntimeError, match=r"end at -?\d+; allowed: from \d+ to \d+|end at 3; allowed: from 5 to 67"):
        torch.ops.samebits.grouped_gemm(drawn(1, M, K), drawn(2, 2, K, N), None, torch.tensor(ends), "cpu")


X, WEIGHT, EXPERT = torch.ones(3, 4), torch.ones(2, 4, 5), torch.tensor([0, 1, 0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"expert": torch.tensor([0, 2, 0])}, "expert 2 at row 1, there are 2; allowed: 0 to 1"),
        ({"expert": torch.tensor([0, 1, -1])}, "expert -1 at row 2, there are 2; allowed: 0 to 1"),
        ({"expert": torch.tensor([0, 1])}, "the length of expert is 2, the first axis of x is 3; they must agree"),
        ({"expert": torch.ones(3)}, "expert has dtype float32; allowed: int64, int32"),
        ({"expert": torch.zeros(3, 1, dtype=torch.int64)}, r"expert has shape \(3, 1\); allowed: 1 dimensions"),
        ({"expert": torch.zeros(3, dtype=torch.int64, device="meta")}, "expert is on meta, x on cpu; they must agree"),
        ({"weight": torch.ones(4, 5)}, r"weight has shape \(4, 5\); allowed: 3 dimensions"),
        ({"weight": torch.ones(2, 3, 5)}, "the last axis of x is 4, the second axis of weight is 3; they must agree"),
        ({"weight": torch.ones(0, 4, 5)}, "there are 0 experts; allowed: at least 1"),
        ({"weight": WEIGHT.half()}, "weight has dtype float16, x has float32; they must agree"),
        ({"x": torch.ones(4)}, r"x has shape \(4,\); allowed: 2 dimensions"),
        ({"x": X.double(), "weight": WEIGHT.double()}, "x has dtype float64; allowed with backend='cpu'"),
    ],
)
def test_bad_input_is_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^grouped_matmul: {message}") as caught:
        grouped_matmul(**{"x": X, "weight": WEIGHT, "expert": EXPERT, **changed})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("accumulator", "message"),
    [
        (torch.zeros(2, 4, 5).half(), "accumulator has dtype float16; allowed: float32"),
        (torch.zeros(2, 5, 4), r"accumulator has shape \(2, 5, 4\); allowed: \(2, 4, 5\)"),
        (torch.zeros(4, 5), r"accumulator has shape \(4, 5\); allowed: 3 dimensions"),
        (torch.zeros(2, 5, 4).transpose(1, 2), "accumulator has strides .* allowed: contiguous"),
    ],
)
def test_a_bad_accumulator_is_refused(accumulator: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^grouped_matmul_accumulate_: {message}"):
        grouped_matmul_accumulate_(accumulator, X, torch.ones(3, 5), EXPERT)


def test_it_is_exported() -> None:
    assert samebits.ops.grouped_matmul is grouped_matmul
    assert samebits.ops.grouped_matmul_accumulate_ is grouped_matmul_accumulate_
