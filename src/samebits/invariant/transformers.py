"""attn_implementation="samebits" for transformers: its masks and tensors turned into samebits' one attention.

Loads transformers only in `register`. A mask stays the 2-D padding mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from samebits.invariant.compound import alone, mode_of_call, unseen
from samebits.invariant.products import backend_of
from samebits.invariant.sequence_bounds import (
    HOLES,
    Bounds,
    all_keys,
    back_in_place,
    bounds_of_mask,
    bounds_of_pieces,
    bounds_of_rows,
    bounds_without_holes,
    in_order,
    packed_ends,
    padding_mask,
)
from samebits.ops.attention import HEAD_MULTIPLE, LONGEST_HEAD

NAME = "samebits"


@cache
def register() -> None:
    """Makes attn_implementation="samebits" known. `invariant_mode` does it where transformers is loaded."""
    transformers = import_module("transformers")
    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, padding_mask)
    import_module("samebits.invariant.default_attention").install()


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """(batch, heads, length, head size) tensors in, (batch, length, heads, head size) out, as transformers wants it."""
    backend = backend_of(query)
    _check_arguments(module, dropout, unused)
    B, heads, S, D = query.shape
    width = _check_sizes(module, query, key, value)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    with unseen(query, key, value):  # all that is done here moves numbers, or counts tokens
        if attention_mask is not None:
            key, value = all_keys(key, value, attention_mask.shape[-1])
        if getattr(attention_mask, HOLES, False):
            _check_window(module, sliding_window)
        bounds, order_BK = _bounds(query, key, attention_mask, position_ids, cu_seq_lens_q, cu_seq_lens_k)
        if order_BK is not None:
            query = in_order(query, bounds.order)
            key, value = (in_order(x, order_BK) for x in (key, value))
        flat = [_widened(x, width).transpose(1, 2).reshape(-1, x.shape[1], width) for x in (query, key, value)]
    # Torch reads all sixteen arguments' names anew for a registered gradient: 0.2 ms a call.
    ours = mode_of_call() is not None and torch.is_grad_enabled() and alone(*flat)
    compute: Callable[..., Any] = _Attention.apply if ours else torch.ops.samebits.attention
    out, _ = compute(
        *flat,
        bounds.q_start,
        bounds.q_length,
        bounds.k_start,
        bounds.k_length,
        None,
        0,
        *bounds.longest,
        bool(causal),
        sliding_window or 0,
        1.0 / math.sqrt(D) if scaling is None else float(scaling),
        softcap or 0.0,
        backend,
    )
    with unseen(out):
        out = out.view(B, S, heads, width)[..., : value.shape[-1]]
        return out if bounds.order is None else back_in_place(out, bounds.order), None


class _Attention(torch.autograd.Function):
    """The operator with its gradients."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        out, lse = torch.ops.samebits.attention(*arguments)
        (q, k, v, *tables), ctx.rest = arguments[:7], arguments[9:]
        ctx.save_for_backward(q, k, v, out, lse, *tables)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        gradients = torch.ops.samebits.attention_gradients(dout, *ctx.saved_tensors, *ctx.rest)
        return (*gradients, *[None] * (6 + len(ctx.rest)))


def _bounds(
    query: Tensor,
    key: Tensor,
    mask_BK: Tensor | None,
    position_ids: Tensor | None,
    q_ends: Tensor | None,
    k_ends: Tensor | None,
) -> tuple[Bounds, Tensor | None]:
    """And the order of the keys that closes holes, where there are any."""
    B, S, K = query.shape[0], query.shape[2], key.shape[2]
    if q_ends is not None:
        return bounds_of_pieces(q_ends, q_ends if k_ends is None else k_ends, (B * S, B * K)), None
    if mask_BK is None:
        ends = packed_ends(position_ids, B, S) if S == K else None
        rows = bounds_of_rows(B, S, K, query.device) if ends is None else bounds_of_pieces(ends, ends, (S, K))
        return rows, None
    return bounds_without_holes(mask_BK, S) if getattr(mask_BK, HOLES, False) else (bounds_of_mask(mask_BK, S), None)


def _check_sizes(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor) -> int:
    """The head size to compute with: that of values may differ, and zeros that are added to a head change nothing."""
    heads, width = key.shape[1], -(-max(query.shape[-1], value.shape[-1]) // HEAD_MULTIPLE) * HEAD_MULTIPLE
    if query.shape[-1] != key.shape[-1] or value.shape[1:3] != key.shape[1:3] or not heads or query.shape[1] % heads:
        allowed = (
            "(batch, heads, length, head size), equal head sizes of q and k, heads of q a multiple of those of k and v"
        )
    elif width > LONGEST_HEAD:
        allowed = f"head sizes up to {LONGEST_HEAD}; leave attn_implementation away for others"
    else:
        return width
    shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
    raise ValueError(
        f"attention 'samebits': q, k, v of {type(module).__name__} have shapes {shapes}; allowed: {allowed}"
    )


def _check_window(module: torch.nn.Module, window: int | None) -> None:
    """A window is counted over the tokens as they are given, holes included; ours over those that are seen."""
    if window:
        raise ValueError(
            f"attention 'samebits': attention_mask has a hole, and {type(module).__name__} a window of {window};"
            " allowed: padding on the left or the right"
        )


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))


def _check_arguments(module: torch.nn.Module, dropout: float, unused: dict[str, Any]) -> None:
    if dropout:
        raise ValueError(
            f"attention 'samebits': dropout is {dropout}; allowed: 0, its random numbers depend on the batch"
        )
    for name in ("s_aux", "position_bias", "cache", "head_mask"):
        if unused.get(name) is not None:
            raise ValueError(f"attention 'samebits': {name} is given to {type(module).__name__}; allowed: None")
    if unused.get("output_attentions"):
        raise ValueError("attention 'samebits': output_attentions is True; allowed: False, scores are never stored")
