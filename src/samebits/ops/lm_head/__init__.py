"""The language-model head: `lm_head`, float32 logits whatever dtype the model is stored in, its
gradients.

No kernel of its own: the chains are `matmul`'s, left unrounded. Where the embedding shares the weight, its gradient is
resumed from the head's by `tied_weight_gradient_`. Losses that need no logits are in `cross_entropy` and `logprob`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_dimensions, check_equal, check_tensors, choose_backend, short
from samebits.ops.cuts import Cut
from samebits.ops.embedding import embedding_gradient_
from samebits.ops.matmul import matmul_accumulate_
from samebits.ops.registering import call, register
from samebits.ops.unrounded import unrounded


@checked
def lm_head(hidden: Tensor, weight: Tensor, *, backend: str | None = None) -> Tensor:
    """hidden (..., K) times weight (V, K) transposed: float32 logits (..., V), one chain over K each."""
    backend = choose_backend("lm_head", hidden, backend)
    check_tensors("lm_head", backend, {"hidden": hidden, "weight": weight})
    check_dimensions("lm_head", "weight", weight, 2)
    if hidden.dim() < 1:
        raise ValueError("lm_head: hidden has shape (); allowed: at least 1 dimension")
    check_equal("lm_head", "the last axis of hidden", hidden.shape[-1], "the last axis of weight", weight.shape[1])
    logits: Tensor = call("lm_head", _rows(hidden), weight, backend)
    return logits.reshape(*hidden.shape[:-1], weight.shape[0])


def tied_weight_gradient_(
    accumulator: Tensor, hidden: Tensor, dlogits: Tensor, ids: Tensor, dembedding: Tensor, *, backend: str | None = None
) -> Tensor:
    """accumulator (V, K) float32 <- a tied weight's gradient: the head's chain, then the embedding's, resumed from it.

    hidden (..., K) and dlogits (..., V) are the head's; ids (...) and dembedding (..., K) the embedding's."""
    name = "tied_weight_gradient_"
    if dlogits.shape[:-1] != hidden.shape[:-1] or not dlogits.is_floating_point():
        raise ValueError(
            f"{name}: dlogits has shape {tuple(dlogits.shape)} {short(dlogits.dtype)}, hidden {tuple(hidden.shape)};"
            f" allowed: floating point, hidden's shape but for the last axis"
        )
    backend = choose_backend(name, hidden, backend)
    check_tensors(name, backend, {"hidden": hidden, "dembedding": dembedding})
    matmul_accumulate_(accumulator, _rows(dlogits).to(hidden.dtype).T, _rows(hidden), backend=backend)
    return embedding_gradient_(accumulator, ids, dembedding, backend=backend)


def _rows(tensor: Tensor) -> Tensor:
    """Leading axes as one batch of rows."""
    return tensor if tensor.dim() == 2 else tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1])


def _run(hidden: Tensor, weight: Tensor, backend: str) -> Tensor:
    return unrounded(hidden, weight.T, backend)


def _fake(hidden: Tensor, weight: Tensor, backend: str) -> Tensor:
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    return hidden.new_empty(hidden.shape[0], weight.shape[0], dtype=dtype)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:
    hidden, weight, ctx.backend = inputs
    needs_hidden, needs_weight = ctx.needs_input_grad[:2]
    ctx.dtype = hidden.dtype
    ctx.save_for_backward(hidden if needs_weight else None, weight if needs_hidden else None)


def _backward(ctx: Any, dlogits_MV: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    hidden_MK, weight_VK = ctx.saved_tensors
    needs_hidden, needs_weight = ctx.needs_input_grad[:2]
    gemm, rounded_MV = partial(call, "gemm"), dlogits_MV.to(ctx.dtype)
    dhidden_MK = gemm(rounded_MV, weight_VK, None, ctx.backend) if needs_hidden else None
    dweight_VK = gemm(rounded_MV.T, hidden_MK, None, ctx.backend) if needs_weight else None
    return dhidden_MK, dweight_VK, None


register(
    "lm_head(Tensor hidden, Tensor weight, str backend) -> Tensor",
    run=_run,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    # Rows of hidden, or of the weight, which are columns of the logits.
    cuts=[Cut({"hidden": 0}, (0,)), Cut({"weight": 0}, (1,))],
    flops=lambda hidden, weight, _: 2 * hidden.numel() * weight.shape[0],
)
