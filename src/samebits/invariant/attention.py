"""`scaled_dot_product_attention` with any mask, forward and backward: one arithmetic for every mask, in one order.

A query's bits depend on that query and on the keys it sees, in their order: not on where padding or a cache put them,
nor on how a mask is written (None, causal, boolean, added). For one query of one head, float32 after every step:
    s = chain over the head of fma(q, k, s) from +0, times scale, plus the mask; unseen keys: -inf
    e = exp(s - the largest s); l = chain over keys of e; out = (chain over keys of fma(e, v, out)) / l, 0 where l is 0
Backward: P = e / l; delta = chain over the head of dout * out; dS = P * (chain over the head of dout v - delta);
    dq = scale * chain over keys of dS k; dk = scale * chain over queries of dS q; dv = chain over queries of P dout,
    both rounded for every query head and added by a chain over the heads of a group; the mask's gradient is dS.
An unseen key adds exact zeros to every chain. 16-bit tensors are widened first: no chain takes two terms at once."""

# B batch, H heads, Hk key heads, S queries, K keys, D head size, E head size of the values

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits.invariant import sums
from samebits.invariant.pointwise import exp
from samebits.invariant.products import backend_of, bmm
from samebits.invariant.refused import RefusedError
from samebits.ops import first_order
from samebits.ops.arguments import short
from samebits.ops.registering import register

MOST_SCORES = 1 << 25
"""At once in memory, 128 MB of float32, where one sequence has no more."""


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's function of that name, its arguments and its meaning; a query that sees no key gives 0."""
    for x in (query, key, value):
        backend_of(x)
    if not query.dtype == key.dtype == value.dtype:
        raise RefusedError(f"q, k, v are {', '.join(short(x.dtype) for x in (query, key, value))}; convert them to one")
    if dropout_p:
        raise RefusedError(
            f"dropout_p is {dropout_p}, and its random numbers depend on the batch; use model.eval() or dropout_p=0"
        )
    if is_causal and attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention: attn_mask and is_causal are both given; allowed: one of them")
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    lead, (q, k, v) = _as_4d(query, key, value, enable_gqa)
    S, K = q.shape[-2], k.shape[-2]
    mask = None
    if attn_mask is not None:
        _check_mask(attn_mask, lead, S, K)
        mask = attn_mask.expand(*lead, S, K).reshape(*q.shape[:2], S, K)
    out: Tensor = torch.ops.samebits.masked_attention(q, k, v, mask, is_causal, scale)
    return out.reshape(*lead, S, value.shape[-1])


def _check_mask(mask: Tensor, lead: tuple[int, ...], S: int, K: int) -> None:
    if not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise RefusedError(f"attn_mask is {short(mask.dtype)}; allowed: bool or a float format")
    wanted = (*lead, S, K)
    padded = (1,) * (len(wanted) - mask.dim()) + tuple(mask.shape)
    if len(padded) != len(wanted) or any(have not in (1, want) for have, want in zip(padded, wanted, strict=True)):
        raise RefusedError(f"attn_mask has shape {tuple(mask.shape)}; allowed: what expands to {wanted}")


def _as_4d(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> tuple[tuple[int, ...], list[Tensor]]:
    """(leading axes of the result, [q (B, H, S, D), k (B, Hk, K, D), v (B, Hk, K, E)])."""
    given = (query, key, value)
    wrong = RefusedError(
        f"q, k, v have shapes {', '.join(str(tuple(x.shape)) for x in given)}; allowed: leading axes that broadcast"
        " (with enable_gqa: equal but for the heads, q's a multiple of the others'), head size of q that of k, as many"
        " values as keys"
    )
    if min(x.dim() for x in given) < 2 or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise wrong
    leads = [tuple(x.shape[:-2]) for x in given]
    if grouped and min(len(lead) for lead in leads) > 0:
        heads = [lead[-1] for lead in leads]
        if not all(heads) or heads[1] != heads[2] or heads[0] % heads[1] or len({lead[:-1] for lead in leads}) > 1:
            raise wrong
        return leads[0], [x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]) for x in given]
    try:
        lead: tuple[int, ...] = tuple(torch.broadcast_shapes(*leads))  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise wrong from None
    batch, heads_ = math.prod(lead[:-1]), lead[-1] if lead else 1
    return lead, [x.expand(*lead, *x.shape[-2:]).reshape(batch, heads_, *x.shape[-2:]) for x in given]


def _times(a_HMK: Tensor, b_GKN: Tensor) -> Tensor:
    """A product a head; heads that share one of b are rows of one product, one after the other."""
    G, (H, M, K) = b_GKN.shape[0], a_HMK.shape
    return bmm(a_HMK.reshape(G, H // G * M, K), b_GKN).reshape(H, M, b_GKN.shape[2])


def _together(sequences: int, scores: int) -> list[slice]:
    """Sequences that are computed at once: as many as keep few enough scores in memory."""
    step = max(1, MOST_SCORES // max(1, scores))
    return [slice(first, first + step) for first in range(0, sequences, step)]


def _of_groups(x_BHKD: Tensor, key_heads: int) -> Tensor:
    """Gradients of every query head added up over the heads that share a key head, as for keys that were repeated."""
    B, H, K, D = x_BHKD.shape
    return x_BHKD if key_heads == H else sums.sum(x_BHKD.view(B, key_heads, H // key_heads, K, D), [2])


def _weights(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """(e, l) of every head of one or more sequences: (H, S, K) and (H, S, 1)."""
    score = _times(q, k.mT) * scale
    if causal:
        seen = torch.ones(score.shape[1:], dtype=torch.bool, device=score.device).tril()
        score = torch.where(seen, score, -math.inf)
    if mask is not None:
        score = torch.where(mask, score, -math.inf) if mask.dtype == torch.bool else score + mask.float()
    top = score.amax(-1, keepdim=True)
    e = exp(score - torch.where(top == -math.inf, 0.0, top))
    return e, sums.float32_sum(e, -1, True)


def _divided(x: Tensor, total: Tensor) -> Tensor:
    """x / total; 0 where no key is seen."""
    return torch.where(total == 0, 0.0, x / total)


def _of_seen_keys(e: Tensor, *rows: Tensor) -> list[Tensor]:
    """Keys that no query sees may hold anything, and 0 times infinity is not 0: they become zeros."""
    unseen = (e == 0).reshape(rows[0].shape[0], -1, e.shape[-1]).all(1).unsqueeze(-1)
    return [torch.where(unseen, 0.0, each) for each in rows]


def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    if out.numel() == 0 or k.shape[2] == 0:
        return out
    for b in _together(q.shape[0], q.shape[1] * q.shape[2] * k.shape[2]):
        q_b, k_b, v_b = (x[b].flatten(0, 1).float() for x in (q, k, v))
        e, total = _weights(q_b, k_b, None if mask is None else mask[b].flatten(0, 1), causal, scale)
        out[b] = _divided(_times(e, *_of_seen_keys(e, v_b)), total).to(q.dtype).view_as(out[b])
    return out


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[-1])


def _gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, of_mask: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, dmask); the last is empty where nobody asks."""
    H, K = q.shape[1], k.shape[2]
    dq = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    dk, dv = (x.new_zeros(x.shape[0], H, K, x.shape[3]) for x in (k, v))
    dmask = torch.zeros(mask.shape if of_mask and mask is not None else (0,), dtype=torch.float32, device=q.device)
    for b in _together(q.shape[0] if dout.numel() and K else 0, H * q.shape[2] * K):
        q_b, k_b, v_b, dout_b = (x[b].flatten(0, 1).float() for x in (q, k, v, dout))
        e, total = _weights(q_b, k_b, None if mask is None else mask[b].flatten(0, 1), causal, scale)
        k_b, v_b = _of_seen_keys(e, k_b, v_b)
        p = _divided(e, total)
        delta = sums.float32_sum(dout_b * _divided(_times(e, v_b), total), -1, True)
        ds = torch.where(p == 0, 0.0, p * (_times(dout_b, v_b.mT) - delta))
        dq[b] = (_times(ds, k_b) * scale).to(q.dtype).view_as(dq[b])
        dk[b] = (_times(ds.mT, q_b) * scale).to(k.dtype).view_as(dk[b])
        dv[b] = _times(p.mT, dout_b).to(v.dtype).view_as(dv[b])
        if of_mask:
            dmask[b] = ds.view_as(dmask[b])
    return dq, _of_groups(dk, k.shape[1]), _of_groups(dv, v.shape[1]), dmask


def _gradients_fake(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, of_mask: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    shape = mask.shape if of_mask and mask is not None else (0,)
    return dq, dk, dv, q.new_empty(shape, dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask)


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, mask = ctx.saved_tensors
    of_mask = ctx.needs_input_grad[3]
    dq, dk, dv, dmask = torch.ops.samebits.masked_attention_gradients(
        dout, q, k, v, mask, ctx.causal, ctx.scale, of_mask
    )
    return dq, dk, dv, dmask.to(mask.dtype) if of_mask else None, None, None


_ARGUMENTS = "Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale"
register(
    f"masked_attention({_ARGUMENTS}) -> Tensor",
    run=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    f"masked_attention_gradients(Tensor dout, {_ARGUMENTS}, bool of_mask) -> (Tensor, Tensor, Tensor, Tensor)",
    run=_gradients,
    fake=_gradients_fake,
)
first_order.refuse()
