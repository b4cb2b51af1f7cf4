"""Linear layers whose weight is cut over ranks, with the bits of one device: `column_parallel`, `row_parallel`.

A sum that runs over all ranks' parts is one chain that travels in the order of places and is rounded once, at its end:
the output of a row-parallel layer, the input's gradient of a column-parallel one. All else is a rank's own. A rank may
hold nothing; it passes sums on. Knows no module and no model; that all ranks hold the same x is the caller's word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from samebits.ops.accumulation import Sums, resumed
from samebits.ops.arguments import check_dimensions, check_equal, check_tensors, choose_backend, short
from samebits.ops.matmul import linear, matmul_accumulate_
from samebits.ops.registering import call
from samebits.parallel.collectives import chain, gather_columns, widths_of
from samebits.parallel.world import Group

# M rows, T rows of a tile, K inputs, N outputs, W weights that meet the same input: whole, or as many as are here.

# Where a chain of 16-bit numbers may be left on CUDA: the products that a matrix unit adds in one step.
MATRIX_WIDTH: Final = 16


def column_parallel(
    x: Tensor,
    weights: Sequence[Tensor],
    group: Group,
    *,
    sums: Sequence[Sums] | None = None,
    biases: Sequence[Tensor | None] | None = None,
) -> list[Tensor]:
    """x (..., K), the same on every rank, with each of some weights (N of this rank, K): outputs (..., N of this rank).

    With `sums`, a weight's gradient is added to its float32 sum in the backward pass instead of being returned."""
    if not weights:
        raise ValueError("column_parallel: there are 0 weights; allowed: at least 1")
    for name, given in (("sums", sums), ("biases", biases)):
        if given is not None:
            check_equal("column_parallel", f"the number of {name}", len(given), "that of weights", len(weights))
    backend = choose_backend("column_parallel", x, None)
    biases = [None] * len(weights) if biases is None else biases
    return list(_Column.apply(x, group, sums, backend, *weights, *biases))  # type: ignore[no-untyped-call]


def row_parallel(
    x: Tensor, weight: Tensor, group: Group, *, sums: Sums | None = None, bias: Tensor | None = None
) -> Tensor:
    """x (..., K of this rank) with weight (N, K of this rank), summed over all ranks: (..., N), the same on every rank.

    The bias (N), the same on every rank, is added once, to the whole sum in float32. `sums` as in column_parallel."""
    backend = choose_backend("row_parallel", x, None)
    check_tensors("row_parallel", backend, {"x": x, "weight": weight, "bias": bias})
    check_dimensions("row_parallel", "weight", weight, 2)
    check_equal("row_parallel", "the last axis of x", x.shape[-1], "the last axis of weight", weight.shape[1])
    if bias is not None:
        check_equal("row_parallel", "the length of bias", bias.numel(), "the first axis of weight", weight.shape[0])
    y: Tensor = _Row.apply(x, weight, bias, group, sums, backend)  # type: ignore[no-untyped-call]
    return y


def gathered_linear(
    x: Tensor, weight: Tensor, group: Group, widths: Sequence[int], *, bias: Tensor | None = None
) -> Tensor:
    """x (..., K) with a weight cut on its output axis, `widths` of it on each rank: all outputs on every rank.

    For inference: nothing is summed over ranks, and nothing is kept for a backward pass."""
    check_equal(
        "gathered_linear", "the first axis of weight", weight.shape[0], "this rank's width", widths[group.place]
    )
    with torch.no_grad():
        y_MN = linear(rows_of(x), weight, bias)
        return gather_columns(group, y_MN, widths, "gathered linear").reshape(*x.shape[:-1], sum(widths))


def gathered(x: Tensor, cuts: Sequence[int], group: Group) -> Tensor:
    """All ranks' columns (..., those of this rank) side by side; its gradient, the same on every rank, is cut again."""
    y: Tensor = _Gathered.apply(x, tuple(cuts), group)  # type: ignore[no-untyped-call]
    return y


def scattered(x: Tensor, cuts: Sequence[int], group: Group) -> Tensor:
    """This rank's columns of x, which is the same on every rank; gradients of all columns are gathered again."""
    y: Tensor = _Scattered.apply(x, tuple(cuts), group)  # type: ignore[no-untyped-call]
    return y


def check_cuts(name: str, cuts: Sequence[int], like: Tensor) -> None:
    """Whether a chain may travel between pieces with these borders: not within a step of matrix units."""
    inner = [cut for cut in cuts if cut % MATRIX_WIDTH and cut != cuts[-1]]
    if inner and like.is_cuda and like.dtype != torch.float32:
        raise ValueError(
            f"{name}: the cuts are {list(cuts)} for {short(like.dtype)} on {like.device};"
            f" allowed: multiples of {MATRIX_WIDTH}, but for the end"
        )


def rows_of(x: Tensor) -> Tensor:
    """Leading axes as one batch of rows."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: Group, sums: Sequence[Sums] | None, backend: str, *tensors: Any
    ) -> tuple[Tensor, ...]:
        weights, biases = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        # An output that nobody used has no gradient: +0 in its place would turn a sum of -0 into +0.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *weights)
        ctx.group, ctx.sums, ctx.backend = group, sums, backend
        return tuple(linear(x, weight, bias, backend=backend) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        x_MK, count = rows_of(x), len(weights)
        needed = ctx.needs_input_grad[4:]
        dweights: list[Tensor | None] = [None] * count
        dbiases: list[Tensor | None] = [None] * count
        present: list[tuple[Tensor, Tensor]] = []
        for i, (dy, weight) in enumerate(zip(gradients, weights, strict=True)):
            if dy is None:
                continue
            dy_MN = rows_of(dy)
            sums = None if ctx.sums is None else ctx.sums[i]
            dweights[i] = _weight_gradient(dy_MN, x_MK, sums, needed[i], ctx.backend)
            dbiases[i] = _bias_gradient(dy_MN, needed[count + i], ctx.backend)
            present.append((dy_MN, weight))
        dx = None
        if ctx.needs_input_grad[0] and present:
            dx = _input_gradient(present, x_MK, ctx.group, ctx.backend).reshape(x.shape)
        return dx, None, None, None, *dweights, *dbiases


def _input_gradient(present: list[tuple[Tensor, Tensor]], x_MK: Tensor, group: Group, backend: str) -> Tensor:
    """Sum over weights of dy weight: a chain for each over all ranks' outputs, rounded; then the last weight's first,
    as autograd adds the gradients of one tensor that several operators read."""
    (rows, width), count = x_MK.shape, len(present)

    def add(tile: slice, sum_TWK: Tensor) -> None:
        # The memory of a tile that travels is one dense matrix for each weight, one after another.
        for (dy_MN, weight), sum_TK in zip(present, sum_TWK.view(count, len(sum_TWK), width), strict=True):
            torch.ops.samebits.gemm_accumulate_(sum_TK, dy_MN[tile], weight, backend)

    def finish(sum_TWK: Tensor) -> Tensor:
        parts = list(sum_TWK.view(count, len(sum_TWK), width).to(x_MK.dtype))
        dx_TK: Tensor = parts.pop()
        while parts:
            dx_TK = dx_TK + parts.pop()
        return dx_TK

    return chain(group, (rows, count * width), add, finish, x_MK, "column-parallel input gradient", columns=width)


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sums: Sums | None, backend: str
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sums, ctx.backend = sums, backend
        x_MK, outputs = rows_of(x), weight.shape[0]

        def add(tile: slice, sum_TN: Tensor) -> None:
            torch.ops.samebits.gemm_accumulate_(sum_TN, x_MK[tile], weight.T, backend)

        def finish(sum_TN: Tensor) -> Tensor:
            return (sum_TN if bias is None else sum_TN + bias.float()).to(x.dtype)

        y_MN = chain(group, (x_MK.shape[0], outputs), add, finish, x_MK, "row-parallel output")
        return y_MN.reshape(*x.shape[:-1], outputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        dy_MN = rows_of(dy)
        dx = call("gemm", dy_MN, weight, None, ctx.backend).reshape(x.shape) if wants_x else None
        dweight = _weight_gradient(dy_MN, rows_of(x), ctx.sums, wants_weight, ctx.backend)
        return dx, dweight, _bias_gradient(dy_MN, wants_bias, ctx.backend), None, None, None


def _weight_gradient(dy_MN: Tensor, x_MK: Tensor, sums: Sums | None, wanted: bool, backend: str) -> Tensor | None:
    """A chain over rows: resumed in `sums`, or from +0 and rounded."""
    if sums is not None:
        for part, rows in resumed(sums, len(x_MK)):
            matmul_accumulate_(part, dy_MN[rows].T, x_MK[rows], backend=backend)
        return None
    return call("gemm", dy_MN.T, x_MK, None, backend) if wanted else None


def _bias_gradient(dy_MN: Tensor, wanted: bool, backend: str) -> Tensor | None:
    """A chain over rows, as a product with ones."""
    return call("gemm", dy_MN.new_ones(1, dy_MN.shape[0]), dy_MN, None, backend).reshape(-1) if wanted else None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cuts: tuple[int, ...], group: Group) -> Tensor:
        ctx.own = slice(cuts[group.place], cuts[group.place + 1])
        return _columns(x, cuts, group, "gathered outputs")

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return dy[..., ctx.own], None, None


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cuts: tuple[int, ...], group: Group) -> Tensor:
        ctx.cuts, ctx.group = cuts, group
        return x[..., cuts[group.place] : cuts[group.place + 1]].clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _columns(dy, ctx.cuts, ctx.group, "gathered input gradient"), None, None


def _columns(x: Tensor, cuts: tuple[int, ...], group: Group, what: str) -> Tensor:
    return gather_columns(group, rows_of(x), widths_of(cuts), what).reshape(*x.shape[:-1], cuts[-1])
