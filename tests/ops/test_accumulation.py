"""Sums of spans: rows that share a pass, each span of them with weight gradients of its own, as in passes apart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from samebits.numerics.bits import same_bits
from samebits.ops.accumulation import (
    Spans,
    Sums,
    embedding_into,
    linear_into,
    lm_head_into,
    resumed,
    rmsnorm_into,
    selected_logprob_into,
)

ROWS, WIDTH, WORDS = 70, 48, 300
# One row, none at all, and spans that begin between the tiles of kernels.
CUTS = (0, 1, 20, 20, 33, 70)
Operator = Callable[[Tensor, Tensor, Tensor, Sums], Tensor]

OPERATORS: dict[str, tuple[tuple[int, ...], Operator]] = {
    "linear": ((WORDS, WIDTH), lambda x, weight, ids, sums: linear_into(x, weight, sums)),
    "rmsnorm": ((WIDTH,), lambda x, weight, ids, sums: rmsnorm_into(x, weight, sums)),
    "rmsnorm of heads": (
        (WIDTH // 4,),
        lambda x, weight, ids, sums: rmsnorm_into(x.reshape(len(x), 4, -1), weight, sums),
    ),
    "embedding": ((WORDS, WIDTH), lambda x, weight, ids, sums: embedding_into(ids, weight, sums)),
    "lm_head": ((WORDS, WIDTH), lambda x, weight, ids, sums: lm_head_into(x, weight, sums)),
    "logprob": ((WORDS, WIDTH), lambda x, weight, ids, sums: selected_logprob_into(x, weight, ids, sums)),
}


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(each, generator=draw).to(dtype) for each in ((ROWS, WIDTH), shape))
    ids = torch.randint(0, WORDS, (ROWS,), generator=draw)
    return x.requires_grad_(), weight.requires_grad_(), ids


def passed(operator: Operator, x: Tensor, weight: Tensor, ids: Tensor, sums: Sums, rows: slice) -> list[Tensor]:
    """Outputs and the input's gradient of some rows; weight gradients go into the sums."""
    some = x.detach()[rows].requires_grad_()
    y = operator(some, weight, ids[rows], sums)
    upstream = torch.randn(ROWS, *y.shape[1:], generator=torch.Generator().manual_seed(2))[rows].to(y.dtype)
    y.backward(upstream)
    return [y.detach(), torch.zeros(()) if some.grad is None else some.grad]


def zeros(shape: tuple[int, ...], count: int) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(count, *shape))


def together(name: str, dtype: torch.dtype, cuts: tuple[int, ...]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    shape, operator = OPERATORS[name]
    x, weight, ids = inputs(shape, dtype)
    sums = zeros(shape, len(cuts) - 1)
    return passed(operator, x, weight, ids, Spans(sums, cuts), slice(0, ROWS)), sums


def apart(name: str, dtype: torch.dtype, cuts: tuple[int, ...]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    shape, operator = OPERATORS[name]
    x, weight, ids = inputs(shape, dtype)
    sums = zeros(shape, len(cuts) - 1)
    found = [
        passed(operator, x, weight, ids, each, slice(*span))
        for each, span in zip(sums, pairwise(cuts), strict=True)
        if span[0] < span[1]
    ]
    return [_joined(each) for each in zip(*found, strict=True)], sums


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(parts) if parts[0].dim() else parts[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATORS)
def test_spans_of_a_pass_are_passes_apart(name: str, dtype: torch.dtype) -> None:
    (outputs, sums), (wanted, wanted_sums) = together(name, dtype, CUTS), apart(name, dtype, CUTS)
    for found, expected in zip((*outputs, *sums), (*wanted, *wanted_sums), strict=True):
        assert same_bits(found, expected)
    assert not sums[2].any() and all(sums[place].any() for place in (0, 1, 3, 4))


@pytest.mark.parametrize("name", OPERATORS)
def test_a_border_one_row_off_is_noticed(name: str) -> None:
    """Planted fault: the third span takes a row of the last one."""
    _, sums = together(name, torch.float32, (0, 1, 20, 20, 34, 70))
    _, wanted = apart(name, torch.float32, CUTS)
    assert [same_bits(found, expected) for found, expected in zip(sums, wanted, strict=True)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_spans_that_are_none_are_refused() -> None:
    sums = zeros((4,), 2)
    with pytest.raises(ValueError, match=r"the cuts are \[0, 5\]; allowed: 3 ascending places from 0"):
        Spans(sums, (0, 5))
    with pytest.raises(ValueError, match=r"the cuts are \[0, 5, 3\]; allowed"):
        Spans(sums, (0, 5, 3))
    with pytest.raises(ValueError, match="their spans have 9 rows, the pass 8; they must agree"):
        list(resumed(Spans(sums, (0, 5, 9)), 8))


@pytest.mark.parametrize("name", OPERATORS)
def test_sums_of_another_shape_are_refused_before_anything_is_computed(name: str) -> None:
    shape, operator = OPERATORS[name]
    x, weight, ids = inputs(shape, torch.float32)
    for sums in (torch.zeros(3, 5), Spans((torch.zeros(shape), torch.zeros(3, 5)), (0, 20, ROWS))):
        with pytest.raises(ValueError, match=r"_into: accumulator has shape \(3, 5\); allowed: "):
            operator(x, weight, ids, sums)


def test_a_norm_is_refused_as_by_its_own_function() -> None:
    x, weight, _ = inputs((WIDTH,), torch.float32)
    with pytest.raises(ValueError, match=r"rmsnorm_into: eps is -1\.0; allowed: finite, at least 0"):
        rmsnorm_into(x, weight, torch.zeros(WIDTH), -1.0)
    with pytest.raises(ValueError, match="rmsnorm_into: the last axis of x is 48, the length of weight is 47"):
        rmsnorm_into(x, weight[:-1], torch.zeros(WIDTH - 1))


def test_part_of_a_pass_meets_the_spans_that_it_overlaps() -> None:
    sums = zeros((4,), 3)
    found = list(resumed(Spans(sums, (0, 5, 6, 12)), 12, 3, 8))
    assert [rows for _, rows in found] == [slice(0, 2), slice(2, 3), slice(3, 5)]
    assert all(part is each for (part, _), each in zip(found, sums, strict=True))
