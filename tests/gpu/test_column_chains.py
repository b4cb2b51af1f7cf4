"""Sums over rows by the kernel for Hopper against the kernel by Triton, bit for bit: formats, forms, sizes, resumed,
from a graph; and which of the two the norms take."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from samebits import ops
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare, same_bits
from samebits.ops._triton.launch import launch_count

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Less than a block, whole blocks, many; norms of heads; columns that are no multiple of a program's; all at once.
SIZES = ((1, 8), (33, 64), (256, 576), (5000, 128), (1031, 200), (300, 4224))
FORMS = ("sum", "rms", "layer")
HOPPER, TRITON = "specialised_column_chains", "column_chains"


def operands(rows: int, width: int, dtype: torch.dtype, form: str, seed: int = 1) -> list[Tensor | None]:
    """dy, x, means, reciprocals and accumulators: NaN, infinities of both signs that meet, and -0 onto -0."""
    made = torch.Generator().manual_seed(rows + width + seed)
    dy, x = (torch.randn(rows, width, generator=made) for _ in range(2))
    mean, rstd = torch.randn(rows, generator=made), torch.rand(rows, generator=made) + 0.5
    start = torch.randn(width, generator=made)
    dy[rows // 2, 0], dy[0, 1], dy[-1, 1], start[2] = torch.nan, torch.inf, -torch.inf, torch.nan
    dy[:, 3], x[:, 3], start[3] = -0.0, x[:, 3].abs() + 6, -0.0
    given = (
        dy.to(dtype),
        None if form == "sum" else x.to(dtype),
        mean if form == "layer" else None,
        None if form == "sum" else rstd,
        start,
    )
    return [None if each is None else each.cuda() for each in given]


def summed(given: list[Any], launch: Any = None) -> Tensor:
    from samebits.ops._triton import columns

    *tensors, start = given
    sums: Tensor = start.clone()
    with nullcontext() if launch is None else launching(launch=launch):
        columns.add_rows(*tensors, sums)
    return sums


def differs(given: list[Any], launch: Any = None) -> str | None:
    """Where a launch, or the chosen one, parts from the kernel by Triton."""
    from samebits.ops._triton.columns import COLUMN_LAUNCH

    found = compare(summed(given, launch).cpu(), summed(given, COLUMN_LAUNCH).cpu())
    return None if found is None else str(found)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bits_as_the_kernel_by_triton(dtype: torch.dtype, form: str) -> None:
    """Each size twice: a launch is made anew, and again at other addresses."""
    from samebits.ops._triton.hopper_columns import ChainLaunch, launch_for

    launches = (
        None,
        ChainLaunch(rows=32, columns=8, stages=2),
        ChainLaunch(rows=128, columns=32, stages=1, slots=1, warps=8),
    )
    for (rows, width), launch, seed in itertools.product(SIZES, launches, (1, 2)):
        given, before = operands(rows, width, dtype, form, seed), launch_count(HOPPER)
        found = differs(given, launch)
        assert found is None, f"{rows} x {width} {launch}: {found}"
        assert launch_count(HOPPER) == before + (launch is not None or launch_for(*given[:4]) is not None)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["other reciprocals", "the last row left out", "no accumulator"])
def test_planted_faults_are_seen(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    from samebits.ops._triton import hopper_columns

    add_rows = hopper_columns.add_rows

    def wrong(dy: Tensor, x: Any, mean: Any, rstd: Tensor, accumulator: Tensor, launch: Any) -> None:
        if fault == "other reciprocals":
            rstd = rstd.flip(0)
        if fault == "the last row left out":
            dy, x, rstd = dy[:-1], x[:-1], rstd[:-1]
        if fault == "no accumulator":
            accumulator.zero_()
        add_rows(dy, x, mean, rstd, accumulator, launch)

    given = operands(1000, 64, torch.bfloat16, "rms")
    assert differs(given) is None
    monkeypatch.setattr(hopper_columns, "add_rows", wrong)
    assert differs(given) is not None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_chain_goes_on_where_it_was_left(dtype: torch.dtype) -> None:
    """By both kernels in turns. Planted: two finished sums differ."""
    dy, x, mean, rstd, start = (each for each in operands(3000, 136, dtype, "layer") if each is not None)
    whole, parts = summed([dy, x, mean, rstd, start]), start
    for first, last in ((0, 8), (8, 1000), (1000, 1004), (1004, 3000)):
        parts = summed([each[first:last] for each in (dy, x, mean, rstd)] + [parts])
    assert compare(parts.cpu(), whole.cpu()) is None
    halves = [
        summed([each[rows] for each in (dy, x, mean, rstd)] + [torch.zeros_like(start)])
        for rows in (slice(0, 1000), slice(1000, 3000))
    ]
    assert compare((start + halves[0] + halves[1]).cpu(), whole.cpu()) is not None


def test_within_a_graph() -> None:
    """Captured once, and replayed with other numbers in the same memory."""
    given, others = (operands(2048, 1024, torch.bfloat16, "rms", seed) for seed in (1, 2))
    memory = [None if each is None else each.clone() for each in given]
    sums = torch.zeros(1024, device="cuda")

    def add() -> None:
        from samebits.ops._triton import columns

        columns.add_rows(*memory[:4], sums)  # type: ignore[arg-type]

    before = launch_count(HOPPER)
    add()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add()
    assert launch_count(HOPPER) == before + 2
    for wanted in (given, others):
        for place, each in zip((*memory[:4], sums), wanted, strict=True):
            if place is not None:
                place.copy_(each)
        graph.replay()
        assert compare(sums.cpu(), summed(wanted).cpu()) is None


@pytest.mark.parametrize(("rows", "width", "wanted"), [(8, 1024, TRITON), (4096, 1024, HOPPER), (4096, 1023, TRITON)])
def test_the_norms_take_it_where_it_pays(monkeypatch: pytest.MonkeyPatch, rows: int, width: int, wanted: str) -> None:
    """And their gradients are those of the kernel by Triton, and in float32 the CPU's."""
    from samebits.ops._triton import hopper_columns

    x, dy = (torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    weight, bias = torch.ones(width, requires_grad=True), torch.zeros(width, requires_grad=True)

    def gradients(device: str) -> list[Tensor]:
        own, given, upstream = weight.to(device), x.to(device), dy.to(device)
        (by_rms,) = torch.autograd.grad(ops.rmsnorm(given, own), weight, upstream)
        by_layer = torch.autograd.grad(ops.layernorm(given, own, bias.to(device)), (weight, bias), upstream)
        return [by_rms, *by_layer]

    before = launch_count(wanted)
    found = gradients("cuda")
    assert launch_count(wanted) == before + 3
    monkeypatch.setattr(hopper_columns, "launch_for", lambda *_: None)
    before, by_triton = launch_count(TRITON), gradients("cuda")
    assert launch_count(TRITON) == before + 3
    assert all(map(same_bits, found, by_triton)) and all(map(same_bits, found, gradients("cpu")))
