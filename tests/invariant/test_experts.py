"""Mixtures of experts under invariant mode: their grouped products are samebits' own, and a sequence keeps its bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.invariant.families import KEPT, judge, verdict
from torch import Tensor

from samebits.invariant import products, routed
from samebits.numerics.bits import same_bits
from samebits.ops._cpu import launches
from samebits.ops.matmul import matmul, matmul_accumulate_

FORMATS = [torch.float32, torch.bfloat16]
# Some groups empty, one of a single row, and rows that no group has.
ENDS = torch.tensor([3, 3, 20, 21, 36], dtype=torch.int32)
GROUPS = [slice(0, 3), slice(3, 3), slice(3, 20), slice(20, 21), slice(21, 36)]
M, K, N = 40, 33, 24


def drawn(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_mixture_of_experts_keeps_its_bits(name: str, dtype: torch.dtype) -> None:
    before = launches()
    assert verdict(judge(name, dtype)) == KEPT
    ran = launches() - before
    assert ran["grouped_matmul", None] > 0
    assert ran["grouped_matmul_dweight", None] > 0


def test_an_expert_whose_order_depends_on_its_load_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: few rows, another order, as a library does that picks its kernel by size."""

    def by_load(a: Tensor, b: Tensor, *others: Any, **named: Any) -> Tensor:
        if a.dim() == 2 and b.dim() == 3 and a.shape[0] > 20:
            return products.grouped_mm(a.flip(1), b.flip(1), *others, **named)
        return products.grouped_mm(a, b, *others, **named)

    monkeypatch.setitem(routed.ROUTED, "_grouped_mm", by_load)
    assert verdict(judge("qwen3_moe")).startswith("WRONG")


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_form_of_a_grouped_product_has_the_bits_of_its_groups(dtype: torch.dtype) -> None:
    x, weight, dy = drawn(1, M, K, dtype=dtype), drawn(2, 5, K, N, dtype=dtype), drawn(3, M, N, dtype=dtype)
    by_rows = products.grouped_mm(x, weight, ENDS)
    by_columns = products.grouped_mm(weight, dy.T, ENDS)
    summed = products.grouped_mm(x.T, dy, ENDS)
    for number, rows in enumerate(GROUPS):
        assert same_bits(by_rows[rows], matmul(x[rows], weight[number]))
        assert same_bits(by_columns[:, rows], matmul(weight[number], dy[rows].T))
        assert same_bits(summed[number], matmul(x[rows].T, dy[rows]))
    assert not by_rows[36:].any()
    assert not by_columns[:, 36:].any()


def test_a_gradient_goes_on_group_by_group() -> None:
    x, dy, sums = (drawn(1, M, K, dtype=torch.bfloat16), drawn(3, M, N, dtype=torch.bfloat16), torch.ones(5, K, N))
    products.resume_grouped_mm(sums, x.T, dy, ENDS)
    for number, rows in enumerate(GROUPS):
        assert same_bits(sums[number], matmul_accumulate_(torch.ones(K, N), x[rows].T, dy[rows]))
