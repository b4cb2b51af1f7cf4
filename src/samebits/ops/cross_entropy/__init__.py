"""Cross-entropy: `linear_cross_entropy` of hidden states and a head's weight, without the logits in memory.

A row's loss and gradient depend on that row, its target and the weight alone; a mean also on its denominator, which may
be given, so that micro-batches agree. Kernels are those of operator `logprob`; reference.py says the order. For a sum
or a mean on the CPU the gradients' float32 sums are computed beside the loss (one_pass.py), elsewhere in the backward
pass: the order, and so the bits, are the same."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_integer
from samebits.ops.cross_entropy.reference import factor_of, total_and_mean
from samebits.ops.cuts import by_rows
from samebits.ops.logprob import check_rows, check_vocabulary, forward, statistic_dtype
from samebits.ops.logprob.gradients import Selection
from samebits.ops.registering import call, register

REDUCTIONS = ("mean", "sum", "none")
LARGEST_DENOMINATOR = torch.finfo(torch.float32).max


@checked
def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    denominator: float | None = None,
    backend: str | None = None,
) -> Tensor:
    """-log softmax(hidden (..., K) weight (V, K)^T) at targets (...), float32: its mean, its sum, or every row's.

    `denominator` divides the sum of a mean instead of the number of rows that are not ignored; without any such row the
    mean is NaN."""
    hidden_MK, targets_M, backend = check_rows("linear_cross_entropy", hidden, weight, "targets", targets, backend)
    ignore_index = check_integer("linear_cross_entropy", "ignore_index", ignore_index)
    if reduction not in REDUCTIONS:
        raise ValueError(f"linear_cross_entropy: reduction is {reduction!r}; allowed: {', '.join(REDUCTIONS)}")
    if denominator is not None and reduction != "mean":
        raise ValueError(
            f"linear_cross_entropy: denominator is {denominator} with reduction={reduction!r}; allowed: with 'mean'"
        )
    if denominator is not None and not 0 < denominator <= LARGEST_DENOMINATOR:
        raise ValueError(f"linear_cross_entropy: denominator is {denominator}; allowed: finite in float32, above 0")
    operators = torch.ops.samebits
    if reduction == "none":
        loss_M, _ = operators.cross_entropy_rows(hidden_MK, weight, targets_M, ignore_index, backend)
        return loss_M.reshape(targets.shape)  # type: ignore[no-any-return]
    wanted = [torch.is_grad_enabled() and each.requires_grad for each in (hidden, weight)]
    loss: Tensor = operators.cross_entropy(
        hidden_MK, weight, targets_M, ignore_index, reduction, denominator, *wanted, backend
    )[0]
    return loss


def _rows(hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, backend: str) -> tuple[Tensor, Tensor]:
    """(loss, log-sum-exp) of every row."""
    check_vocabulary("linear_cross_entropy", targets, ignore_index, weight.shape[0])
    logprob, lse = forward(hidden, weight, targets, ignore_index, backend)
    return 0.0 - logprob, lse


def _rows_fake(
    hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, backend: str
) -> tuple[Tensor, Tensor]:
    rows, dtype = hidden.shape[0], statistic_dtype(hidden)
    return hidden.new_empty(rows, dtype=dtype), hidden.new_empty(rows, dtype=dtype)


def _rows_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    hidden, weight, targets, ctx.ignore_index, ctx.backend = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(hidden, weight, targets, output[1])


def _rows_backward(ctx: Any, dloss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    wants_hidden, wants_weight = ctx.needs_input_grad[:2]
    dhidden, dweight = call(
        "selected_logprob_gradients",
        -dloss,
        *ctx.saved_tensors,
        ctx.ignore_index,
        wants_hidden,
        wants_weight,
        ctx.backend,
    )
    return dhidden if wants_hidden else None, dweight if wants_weight else None, None, None, None


def _reduced(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    reduction: str,
    denominator: float | None,
    wants_hidden: bool,
    wants_weight: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(loss, factor, log-sum-exp of every row, sum for hidden, sum for weight); what is not needed is empty."""
    empty = hidden.new_empty(0, dtype=statistic_dtype(hidden))
    factor = factor_of(targets, ignore_index, reduction, denominator, empty)
    if not _in_one_pass(wants_hidden, wants_weight, backend):
        loss_M, lse_M = _rows(hidden, weight, targets, ignore_index, backend)
        return total_and_mean(loss_M, factor, backend), factor, lse_M, empty, torch.empty_like(empty)
    from samebits.ops.cross_entropy.one_pass import loss_and_sums

    check_vocabulary("linear_cross_entropy", targets, ignore_index, weight.shape[0])
    if hidden.shape[0] == 0:
        sums = (
            empty.new_zeros(hidden.shape if wants_hidden else 0),
            empty.new_zeros(weight.shape if wants_weight else 0),
        )
        return total_and_mean(empty, factor, backend), factor, torch.empty_like(empty), *sums
    loss_M, dhidden, dweight = loss_and_sums(
        hidden.contiguous(),
        weight.contiguous(),
        targets.contiguous(),
        ignore_index,
        (-factor).repeat(hidden.shape[0]),
        wants_hidden,
        wants_weight,
    )
    return total_and_mean(loss_M, factor, backend), factor, empty, dhidden, dweight


def _in_one_pass(wants_hidden: bool, wants_weight: bool, backend: str) -> bool:
    """Whether float32 sums wait for the backward pass: an accelerator's memory is too dear, its products are cheap."""
    return backend == "cpu" and (wants_hidden or wants_weight)


def _reduced_fake(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    reduction: str,
    denominator: float | None,
    wants_hidden: bool,
    wants_weight: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype, one_pass = statistic_dtype(hidden), _in_one_pass(wants_hidden, wants_weight, backend)
    return (
        hidden.new_empty((), dtype=dtype),
        hidden.new_empty((), dtype=dtype),
        hidden.new_empty(0 if one_pass else hidden.shape[0], dtype=dtype),
        hidden.new_empty(hidden.shape if one_pass and wants_hidden else 0, dtype=dtype),
        weight.new_empty(weight.shape if one_pass and wants_weight else 0, dtype=dtype),
    )


def _reduced_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, targets, ctx.ignore_index, _, _, ctx.wants_hidden, ctx.wants_weight, ctx.backend = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(hidden, weight, targets, *output[1:])


def _reduced_backward(ctx: Any, dloss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    dhidden, dweight = call(
        "cross_entropy_gradients",
        dloss,
        *ctx.saved_tensors,
        ctx.ignore_index,
        ctx.wants_hidden,
        ctx.wants_weight,
        ctx.backend,
    )
    wanted = (dhidden if ctx.wants_hidden else None, dweight if ctx.wants_weight else None)
    return *wanted, None, None, None, None, None, None, None


def _gradients(
    upstream: Tensor,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    factor: Tensor,
    lse: Tensor,
    dhidden_sum: Tensor,
    dweight_sum: Tensor,
    ignore_index: int,
    wants_hidden: bool,
    wants_weight: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """round(upstream * sum), from the sums where the forward pass left them."""
    if _in_one_pass(wants_hidden, wants_weight, backend):
        return (dhidden_sum * upstream).to(hidden.dtype), (dweight_sum * upstream).to(weight.dtype)
    if hidden.shape[0] == 0:
        dhidden, dweight = _gradients_fake(
            upstream,
            hidden,
            weight,
            targets,
            factor,
            lse,
            dhidden_sum,
            dweight_sum,
            ignore_index,
            wants_hidden,
            wants_weight,
            backend,
        )
        return dhidden.zero_(), dweight.zero_()
    selection = Selection(hidden, weight, targets.contiguous(), lse, ignore_index, backend)
    return selection.gradients((-factor).repeat(hidden.shape[0]), wants_hidden, wants_weight, upstream=upstream)


def _gradients_fake(
    upstream: Tensor,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    factor: Tensor,
    lse: Tensor,
    dhidden_sum: Tensor,
    dweight_sum: Tensor,
    ignore_index: int,
    wants_hidden: bool,
    wants_weight: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    return hidden.new_empty(hidden.shape if wants_hidden else 0), weight.new_empty(weight.shape if wants_weight else 0)


register(
    "cross_entropy_rows(Tensor hidden, Tensor weight, Tensor targets, int ignore_index, str backend)"
    " -> (Tensor, Tensor)",
    run=_rows,
    fake=_rows_fake,
    setup_context=_rows_setup,
    backward=_rows_backward,
    cuts=by_rows(2, "hidden", "targets"),
)
register(
    "cross_entropy(Tensor hidden, Tensor weight, Tensor targets, int ignore_index, str reduction, float? denominator,"
    " bool wants_hidden, bool wants_weight, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    run=_reduced,
    fake=_reduced_fake,
    setup_context=_reduced_setup,
    backward=_reduced_backward,
)
register(
    "cross_entropy_gradients(Tensor upstream, Tensor hidden, Tensor weight, Tensor targets, Tensor factor, Tensor lse,"
    " Tensor dhidden_sum, Tensor dweight_sum, int ignore_index, bool wants_hidden, bool wants_weight, str backend)"
    " -> (Tensor, Tensor)",
    run=_gradients,
    fake=_gradients_fake,
)
