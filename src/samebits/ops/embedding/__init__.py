"""The embedding: rows of a table by number, their gradient, and the resumed gradient `embedding_gradient_`.

The result is a copy, bit for bit. The gradient of a table row is a chain over the positions that asked for it, in
ascending order; it may stop and go on in `embedding_gradient_`. There are no atomics."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import (
    check_accumulator,
    check_dimensions,
    check_integer,
    check_tensors,
    choose_backend,
    short,
)
from samebits.ops.backends import kernel_module
from samebits.ops.cuts import Cut
from samebits.ops.registering import call, register

# The number of no row: what an operator is given where no row is exempt from the gradient.
NONE = -1


@checked
def embedding(ids: Tensor, weight: Tensor, padding_idx: int | None = None, *, backend: str | None = None) -> Tensor:
    """Row ids[...] of weight (V, H) for every id; row `padding_idx` gets no gradient."""
    backend = choose_backend("embedding", weight, backend)
    check_tensors("embedding", backend, {"weight": weight})
    check_dimensions("embedding", "weight", weight, 2)
    if 0 in weight.shape:
        raise ValueError(f"embedding: weight has shape {tuple(weight.shape)}; allowed: axes of at least 1")
    _check_ids("embedding", ids, "weight", weight)
    padding = _padding("embedding", padding_idx, weight.shape[0])
    flat = ids.dim() == 1
    y_MH: Tensor = call("embedding", ids if flat else ids.reshape(-1), weight, padding, backend)
    return y_MH if flat else y_MH.reshape(*ids.shape, weight.shape[1])


@checked
def embedding_gradient_(
    accumulator: Tensor, ids: Tensor, dy: Tensor, padding_idx: int | None = None, *, backend: str | None = None
) -> Tensor:
    """accumulator (V, H) float32 <- the chains over positions of dy (..., H), resumed from it."""
    backend = choose_backend("embedding_gradient_", dy, backend)
    check_tensors("embedding_gradient_", backend, {"dy": dy})
    check_dimensions("embedding_gradient_", "accumulator", accumulator, 2)
    _check_ids("embedding_gradient_", ids, "dy", dy)
    vocabulary, width = accumulator.shape
    if dy.shape != (*ids.shape, width):
        raise ValueError(
            f"embedding_gradient_: dy has shape {tuple(dy.shape)}, ids {tuple(ids.shape)}, accumulator"
            f" {tuple(accumulator.shape)}; allowed: dy like ids with the accumulator's last axis after it"
        )
    check_accumulator("embedding_gradient_", accumulator, (vocabulary, width), {"dy": dy, "ids": ids})
    padding = _padding("embedding_gradient_", padding_idx, vocabulary)
    torch.ops.samebits.embedding_dweight_(accumulator, dy.reshape(-1, width), ids.reshape(-1), padding, backend)
    return accumulator


def _check_ids(operator: str, ids: Tensor, name: str, other: Tensor) -> None:
    """What can be seen without reading the ids."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"{operator}: ids must be a Tensor, got {type(ids).__name__}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{operator}: ids has dtype {short(ids.dtype)}; allowed: int64, int32")
    if ids.device != other.device:
        raise ValueError(f"{operator}: ids is on {ids.device}, {name} on {other.device}; they must agree")


def _padding(operator: str, padding_idx: int | None, vocabulary: int) -> int:
    """Counted from the end where negative, as torch does."""
    if padding_idx is None:
        return NONE
    return check_integer(operator, "padding_idx", padding_idx, -vocabulary, vocabulary - 1, optional=True) % vocabulary


def _inside(operator: str, ids: Tensor, vocabulary: int) -> Tensor:
    """The ids as contiguous int64, each a row of the table. While a graph is captured they cannot be read."""
    ids = ids.to(torch.int64).contiguous()
    if ids.is_cuda and torch.cuda.is_current_stream_capturing():
        return ids
    # One copy from a GPU; on the CPU two numbers are read sooner than one tensor is made of them.
    least_and_most = torch.aminmax(ids)
    lowest, highest = torch.stack(least_and_most).tolist() if ids.is_cuda else (x.item() for x in least_and_most)
    if lowest < 0 or highest >= vocabulary:
        position = int(torch.nonzero((ids < 0) | (ids >= vocabulary))[0])
        raise ValueError(
            f"{operator}: id {int(ids[position])} at position {position}, the vocabulary is {vocabulary};"
            f" allowed: 0 to {vocabulary - 1}"
        )
    return ids


_kernel = partial(kernel_module, __name__, "embedding")


def _embedding(ids: Tensor, weight: Tensor, padding: int, backend: str) -> Tensor:
    if ids.shape[0] == 0:
        return _embedding_fake(ids, weight, padding, backend)
    ids = _inside("embedding", ids, weight.shape[0])
    y: Tensor = _kernel(backend, weight.device).forward(ids, weight.contiguous())
    return y


def _dweight(dy: Tensor, ids: Tensor, vocabulary: int, padding: int, backend: str) -> Tensor:
    if ids.shape[0] == 0:
        return dy.new_zeros(vocabulary, dy.shape[1])
    ids = _inside("embedding", ids, vocabulary)
    dweight: Tensor = _kernel(backend, dy.device).backward(dy.contiguous(), ids, vocabulary, padding)
    return dweight


def _dweight_(accumulator: Tensor, dy: Tensor, ids: Tensor, padding: int, backend: str) -> None:
    if ids.shape[0]:
        ids = _inside("embedding_gradient_", ids, accumulator.shape[0])
        _kernel(backend, dy.device).accumulate(dy.contiguous(), ids, accumulator, padding)


def _embedding_fake(ids: Tensor, weight: Tensor, padding: int, backend: str) -> Tensor:
    return weight.new_empty(ids.shape[0], weight.shape[1])


def _dweight_fake(dy: Tensor, ids: Tensor, vocabulary: int, padding: int, backend: str) -> Tensor:
    return dy.new_empty(vocabulary, dy.shape[1])


def _dweight_in_place_fake(accumulator: Tensor, dy: Tensor, ids: Tensor, padding: int, backend: str) -> None:
    return None


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, str], output: Tensor) -> None:
    ids, weight, ctx.padding, ctx.backend = inputs
    ctx.vocabulary = weight.shape[0]
    ctx.save_for_backward(ids)


def _backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor, None, None]:
    (ids,) = ctx.saved_tensors
    return None, call("embedding_dweight", dy, ids, ctx.vocabulary, ctx.padding, ctx.backend), None, None


register(
    "embedding(Tensor ids, Tensor weight, int padding, str backend) -> Tensor",
    run=_embedding,
    fake=_embedding_fake,
    setup_context=_setup_context,
    backward=_backward,
    # Ids, or columns of the table; the vocabulary whole.
    cuts=[Cut({"ids": 0}, (0,)), Cut({"weight": 1}, (1,))],
)
register(
    "embedding_dweight(Tensor dy, Tensor ids, SymInt vocabulary, int padding, str backend) -> Tensor",
    run=_dweight,
    fake=_dweight_fake,
    # Positions are summed over, so they are whole.
    cuts=[Cut({"dy": 1}, (1,))],
)
register(
    "embedding_dweight_(Tensor(a!) accumulator, Tensor dy, Tensor ids, int padding, str backend) -> ()",
    run=_dweight_,
    fake=_dweight_in_place_fake,
)
