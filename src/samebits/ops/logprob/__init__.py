"""Log-probabilities: `selected_logprob`, its gradients, and the resumed gradient of the weight.

log softmax(hidden weight^T) at one token a row, in float32 whatever the storage dtype, without the logits in memory. A
row's bits depend on that row, its token and the weight alone. The order is fixed by the vocabulary: blocks of 256
columns, each folded by halves, merged left to right (reference.py says it in full). The gradient of hidden is a chain
over the vocabulary, that of weight a chain over rows that may stop and go on in `selected_logprob_weight_gradient_`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import (
    check_accumulator,
    check_dimensions,
    check_equal,
    check_integer,
    check_tensors,
    choose_backend,
    short,
)
from samebits.ops.cuts import Cut, by_rows
from samebits.ops.logprob.gradients import Selection, kernel
from samebits.ops.registering import call, register


@checked
def selected_logprob(
    hidden: Tensor, weight: Tensor, ids: Tensor, *, ignore_index: int = -100, backend: str | None = None
) -> Tensor:
    """log softmax(hidden (..., K) weight (V, K)^T) at ids (...), float32. Rows with `ignore_index` give 0, no gradient.

    A row whose logits hold a NaN or +inf, or nothing but -inf, gives NaN."""
    hidden_MK, ids_M, backend = check_rows("selected_logprob", hidden, weight, "ids", ids, backend)
    ignore_index = check_integer("selected_logprob", "ignore_index", ignore_index)
    logprob_M, _ = call("selected_logprob", hidden_MK, weight, ids_M, ignore_index, backend)
    return logprob_M.reshape(ids.shape)  # type: ignore[no-any-return]


@checked
def logprob_of_logits(logits: Tensor, ids: Tensor, *, ignore_index: int = -100, backend: str | None = None) -> Tensor:
    """log softmax(logits (M, V) float32) at ids (M), float32: `selected_logprob` of the hidden rows and the weight that
    gave these logits, without another pass over the weight. Nothing flows back."""
    name = "logprob_of_logits"
    backend = choose_backend(name, logits, backend)
    if logits.dtype != torch.float32:
        raise ValueError(f"{name}: logits has dtype {short(logits.dtype)}; allowed: float32")
    check_tensors(name, backend, {"logits": logits})
    check_dimensions(name, "logits", logits, 2)
    if logits.shape[1] == 0:
        raise ValueError(f"{name}: logits has shape {tuple(logits.shape)}; allowed: a last axis of at least 1")
    if ids.dtype not in (torch.int64, torch.int32) or ids.shape != logits.shape[:1] or ids.device != logits.device:
        raise ValueError(
            f"{name}: ids has shape {tuple(ids.shape)} {short(ids.dtype)} on {ids.device}, logits has"
            f" {tuple(logits.shape)} on {logits.device}; allowed: int64 or int32, one for each row, on the same device"
        )
    ignore_index = check_integer(name, "ignore_index", ignore_index)
    found: Tensor = call(name, logits.detach(), ids.long(), ignore_index, backend)
    return found


def selected_logprob_weight_gradient_(
    accumulator: Tensor,
    dlogprob: Tensor,
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    ignore_index: int = -100,
    backend: str | None = None,
) -> Tensor:
    """accumulator (V, K) float32 <- the chain over rows of the weight's gradient, resumed from it.

    dlogprob (...) float32 is what flows into `selected_logprob`. Rows may be cut anywhere (width 1) or at multiples of
    16 (matrix units)."""
    name = "selected_logprob_weight_gradient_"
    hidden_MK, ids_M, backend = check_rows(name, hidden, weight, "ids", ids, backend)
    ignore_index = check_integer(name, "ignore_index", ignore_index)
    if hidden.dtype == torch.float64:
        raise ValueError(f"{name}: hidden has dtype float64; allowed: float32, bfloat16, float16")
    if dlogprob.shape != ids.shape or dlogprob.dtype != torch.float32:
        raise ValueError(
            f"{name}: dlogprob has shape {tuple(dlogprob.shape)} {short(dlogprob.dtype)}, ids {tuple(ids.shape)};"
            f" allowed: float32 in the shape of ids"
        )
    inputs = {"dlogprob": dlogprob, "hidden": hidden, "weight": weight}
    check_accumulator(name, accumulator, tuple(weight.shape), inputs)
    with torch.no_grad():
        _, lse_M = call("selected_logprob", hidden_MK, weight, ids_M, ignore_index, backend)
        torch.ops.samebits.selected_logprob_gradients_(
            accumulator, dlogprob.reshape(-1), hidden_MK, weight, ids_M, lse_M, ignore_index, False, backend
        )
    return accumulator


def check_rows(
    operator: str, hidden: Tensor, weight: Tensor, tokens: str, ids: Tensor, backend: str | None
) -> tuple[Tensor, Tensor, str]:
    """Valid arguments as rows, and the backend. `tokens` is what the operator calls its ids."""
    backend = choose_backend(operator, hidden, backend)
    check_tensors(operator, backend, {"hidden": hidden, "weight": weight})
    check_dimensions(operator, "weight", weight, 2)
    if hidden.dim() < 1 or 0 in (hidden.shape[-1], weight.shape[0]):
        raise ValueError(
            f"{operator}: hidden has shape {tuple(hidden.shape)}, weight {tuple(weight.shape)};"
            f" allowed: at least 1 token and a last axis of at least 1"
        )
    check_equal(operator, "the last axis of hidden", hidden.shape[-1], "the last axis of weight", weight.shape[1])
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{operator}: {tokens} has dtype {short(ids.dtype)}; allowed: int64, int32")
    if ids.shape != hidden.shape[:-1]:
        raise ValueError(
            f"{operator}: {tokens} has shape {tuple(ids.shape)}, hidden {tuple(hidden.shape)};"
            f" allowed: hidden's without the last axis"
        )
    if ids.device != hidden.device:
        raise ValueError(f"{operator}: {tokens} is on {ids.device}, hidden on {hidden.device}; they must agree")
    return hidden.reshape(-1, hidden.shape[-1]), ids.reshape(-1).long(), backend


def check_vocabulary(operator: str, ids_M: Tensor, ignore_index: int, vocabulary: int) -> None:
    """Every token is one of the vocabulary, or ignored. Not looked at while a CUDA graph is captured."""
    if ids_M.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    bad_M = (ids_M != ignore_index) & ((ids_M < 0) | (ids_M >= vocabulary))
    if bad_M.any():
        row = int(bad_M.nonzero()[0, 0])
        raise ValueError(
            f"{operator}: token {int(ids_M[row])} in row {row} is outside the vocabulary of {vocabulary};"
            f" allowed: 0 to {vocabulary - 1}, or ignore_index={ignore_index}"
        )


def forward(hidden: Tensor, weight: Tensor, ids: Tensor, ignore_index: int, backend: str) -> tuple[Tensor, Tensor]:
    """(logprob, log-sum-exp) of every row, by the backend's kernel."""
    if hidden.shape[0] == 0:
        return _forward_fake(hidden, weight, ids, ignore_index, backend)
    logprob, lse = kernel(backend, hidden.device).forward(
        hidden.contiguous(), weight.contiguous(), ids.contiguous(), ignore_index
    )
    return logprob, lse


def _of_logits(logits: Tensor, ids: Tensor, ignore_index: int, backend: str) -> Tensor:
    check_vocabulary("logprob_of_logits", ids, ignore_index, logits.shape[1])
    if logits.shape[0] == 0:
        return _of_logits_fake(logits, ids, ignore_index, backend)
    found: Tensor = kernel(backend, logits.device).of_logits(logits.contiguous(), ids.contiguous(), ignore_index)
    return found


def _of_logits_fake(logits: Tensor, ids: Tensor, ignore_index: int, backend: str) -> Tensor:
    return logits.new_empty(logits.shape[0])


def _forward(hidden: Tensor, weight: Tensor, ids: Tensor, ignore_index: int, backend: str) -> tuple[Tensor, Tensor]:
    check_vocabulary("selected_logprob", ids, ignore_index, weight.shape[0])
    return forward(hidden, weight, ids, ignore_index, backend)


def _gradients(
    dlogprob: Tensor,
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    lse: Tensor,
    ignore_index: int,
    wants_hidden: bool,
    wants_weight: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    if hidden.shape[0] == 0:
        return hidden.new_zeros(hidden.shape if wants_hidden else 0), weight.new_zeros(
            weight.shape if wants_weight else 0
        )
    selection = Selection(hidden, weight, ids.contiguous(), lse, ignore_index, backend)
    return selection.gradients(dlogprob, wants_hidden, wants_weight)


def _gradients_(
    accumulator: Tensor,
    dlogprob: Tensor,
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    lse: Tensor,
    ignore_index: int,
    wants_hidden: bool,
    backend: str,
) -> Tensor:
    """The gradient of hidden, empty where not wanted; that of weight goes on in the accumulator."""
    if hidden.shape[0] == 0:
        return hidden.new_zeros(hidden.shape if wants_hidden else 0)
    selection = Selection(hidden, weight, ids.contiguous(), lse, ignore_index, backend)
    return selection.gradients(dlogprob, wants_hidden, False, sum_VK=accumulator)[0]


def statistic_dtype(hidden: Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype == torch.float64 else torch.float32


def _forward_fake(
    hidden: Tensor, weight: Tensor, ids: Tensor, ignore_index: int, backend: str
) -> tuple[Tensor, Tensor]:
    rows, dtype = hidden.shape[0], statistic_dtype(hidden)
    return hidden.new_empty(rows, dtype=dtype), hidden.new_empty(rows, dtype=dtype)


def _gradients_fake(
    dlogprob: Tensor,
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    lse: Tensor,
    ignore_index: int,
    wants_hidden: bool,
    wants_weight: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    return hidden.new_empty(hidden.shape if wants_hidden else 0), weight.new_empty(weight.shape if wants_weight else 0)


def _gradients_fake_(
    accumulator: Tensor,
    dlogprob: Tensor,
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    lse: Tensor,
    ignore_index: int,
    wants_hidden: bool,
    backend: str,
) -> Tensor:
    return hidden.new_empty(hidden.shape if wants_hidden else 0)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    hidden, weight, ids, ctx.ignore_index, ctx.backend = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(hidden, weight, ids, output[1])


def _backward(ctx: Any, dlogprob: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    wants_hidden, wants_weight = ctx.needs_input_grad[:2]
    dhidden, dweight = call(
        "selected_logprob_gradients",
        dlogprob,
        *ctx.saved_tensors,
        ctx.ignore_index,
        wants_hidden,
        wants_weight,
        ctx.backend,
    )
    return dhidden if wants_hidden else None, dweight if wants_weight else None, None, None, None


def _gradient_cuts(arguments: Mapping[str, Any]) -> Sequence[Cut]:
    """Rows, unless they are summed over for the weight's gradient; what is not wanted is empty and so whole."""
    if arguments["wants_weight"] or not arguments["wants_hidden"]:
        return []
    return [Cut(dict.fromkeys(("dlogprob", "hidden", "ids", "lse"), 0), (0, None))]


register(
    "logprob_of_logits(Tensor logits, Tensor ids, int ignore_index, str backend) -> Tensor",
    run=_of_logits,
    fake=_of_logits_fake,
)
register(
    "selected_logprob(Tensor hidden, Tensor weight, Tensor ids, int ignore_index, str backend) -> (Tensor, Tensor)",
    run=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_backward,
    cuts=by_rows(2, "hidden", "ids"),
    flops=lambda hidden, weight, *_: 2 * hidden.numel() * weight.shape[0],
)
register(
    "selected_logprob_gradients(Tensor dlogprob, Tensor hidden, Tensor weight, Tensor ids, Tensor lse,"
    " int ignore_index, bool wants_hidden, bool wants_weight, str backend) -> (Tensor, Tensor)",
    run=_gradients,
    fake=_gradients_fake,
    cuts=_gradient_cuts,
)
register(
    "selected_logprob_gradients_(Tensor(a!) accumulator, Tensor dlogprob, Tensor hidden, Tensor weight, Tensor ids,"
    " Tensor lse, int ignore_index, bool wants_hidden, str backend) -> Tensor",
    run=_gradients_,
    fake=_gradients_fake_,
)
