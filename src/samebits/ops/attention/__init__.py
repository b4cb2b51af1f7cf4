"""Attention: dense, padded, packed or against a cache, with its gradients; one definition for all of them.

A query's bits depend on that query, on the keys and values that it sees, and on nothing else: neither on the batch, on
padding, on how a prompt is cut into chunks, nor on whether keys come from a tensor, a dense cache or pages.
Tested head sizes are 64, 96, 128 and 256; any multiple of 8 up to 256 is taken."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.numerics.exactly import inverse_root
from samebits.ops.arguments import check_equal, check_integer, check_tensors, choose_backend
from samebits.ops.attention.cache import Cache, DenseCache, PagedCache
from samebits.ops.attention.forms import Rule, Sequences
from samebits.ops.attention.layout import Numbers, Spread, dense, flat, packed, padded
from samebits.ops.backends import kernel_module
from samebits.ops.registering import call, register

__all__ = ["DenseCache", "PagedCache", "attention"]

LONGEST_HEAD = 256
HEAD_MULTIPLE = 8
# Made before a compiler looks: it knows nothing of decimal numbers.
SCALES = {head: inverse_root(head) for head in range(HEAD_MULTIPLE, LONGEST_HEAD + 1, HEAD_MULTIPLE)}
# Wider than any sequence; a position and it together stay within the 32 bits that a kernel counts in.
WIDEST_WINDOW = 2**30
LN_2 = 0.6931471805599453


def attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    cu_seqlens: Numbers | Spread | None = None,
    cu_seqlens_k: Numbers | None = None,
    lengths: Numbers | None = None,
    padding: str | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
) -> Tensor:
    """softmax(scale q k) v over the keys that each query sees. q is (B, S, H, D), or packed (T, H, D) with cu_seqlens.

    k and v (.., Hk, D) may be longer than q: the queries are the last positions. H is a multiple of Hk. A query sees
    the keys up to its own (causal) and less than `window` away. `softcap` bends scores to softcap * tanh(. / softcap).
    `lengths` with padding="left" or "right" says how many tokens of each row are real; the others come out as 0.
    With `cache`, k and v are appended to it (None: nothing is) and q attends to all that it holds."""
    return _attend(q, k, v, causal, scale, window, softcap, cu_seqlens, cu_seqlens_k, lengths, padding, cache, backend)[
        0
    ]


def attention_with_lse(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    cu_seqlens: Numbers | Spread | None = None,
    cu_seqlens_k: Numbers | None = None,
    lengths: Numbers | None = None,
    padding: str | None = None,
    cache: Cache | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`attention`, and the natural logarithm of each row's sum of weights, float32 (.., H), -inf where no key is seen.

    The second carries no gradient."""
    out, lse2_TH = _attend(
        q, k, v, causal, scale, window, softcap, cu_seqlens, cu_seqlens_k, lengths, padding, cache, backend
    )
    lse = torch.where(lse2_TH == math.inf, -math.inf, lse2_TH * LN_2)
    return out, lse.reshape(q.shape[:-1])


def _attend(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    causal: bool,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    cu_seqlens: Numbers | Spread | None,
    cu_seqlens_k: Numbers | None,
    lengths: Numbers | None,
    padding: str | None,
    cache: Cache | None,
    backend: str | None,
) -> tuple[Tensor, Tensor]:
    """The output in the shape of q, and the logarithms to base 2 by packed row."""
    backend = choose_backend("attention", q, backend)
    rule = _rule(q, causal, scale, window, softcap)
    queries = _queries(q, cu_seqlens, lengths, padding)
    if cache is not None:
        if cu_seqlens_k is not None:
            raise ValueError("attention: cu_seqlens_k and cache are both given; allowed: one of them")
        keys = _append(q, k, v, queries, cache, backend)
        k_THD, v_THD, pages, page_size = cache.k_flat, cache.v_flat, cache.pages, cache.page_size
    else:
        if k is None or v is None:
            raise ValueError("attention: k or v is None; allowed with a cache only")
        check_tensors("attention", backend, {"q": q, "k": k, "v": v})
        _check_heads(q, k, v)
        keys = _keys(q, k, queries, cu_seqlens, cu_seqlens_k, lengths, padding)
        k_THD, v_THD, pages, page_size = flat(k), flat(v), None, 0
    out_THD, lse2_TH = call(
        "attention",
        flat(q),
        k_THD,
        v_THD,
        queries.start,
        queries.length,
        keys.start,
        keys.length,
        pages,
        page_size,
        queries.longest,
        keys.longest,
        rule.causal,
        rule.window,
        rule.scale,
        rule.softcap,
        backend,
    )
    return out_THD.reshape(q.shape), lse2_TH


def _rule(q: Tensor, causal: bool, scale: float | None, window: int | None, softcap: float | None) -> Rule:
    if q.dim() not in (3, 4):
        raise ValueError(
            f"attention: q has shape {tuple(q.shape)}; allowed: (B, S, H, D), or (T, H, D) with cu_seqlens"
        )
    head = q.shape[-1]
    if not 0 < head <= LONGEST_HEAD or head % HEAD_MULTIPLE:
        raise ValueError(f"attention: head size is {head}; allowed: a multiple of 8 up to {LONGEST_HEAD}")
    scale = SCALES[head] if scale is None else scale
    if not 0.0 < scale < math.inf:
        raise ValueError(f"attention: scale is {scale}; allowed: finite, above 0")
    window = 0 if window is None else check_integer("attention", "window", window, 1, WIDEST_WINDOW, optional=True)
    if softcap is not None and not 0.0 < softcap < math.inf:
        raise ValueError(f"attention: softcap is {softcap}; allowed: finite, above 0, or None")
    return Rule(causal=causal, window=window, scale=scale, softcap=softcap or 0.0)


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    if k.shape != v.shape:
        raise ValueError(f"attention: k has shape {tuple(k.shape)}, v has {tuple(v.shape)}; they must agree")
    check_equal("attention", "the number of dimensions of q", q.dim(), "that of k", k.dim())
    check_equal("attention", "the head size of q", q.shape[-1], "that of k", k.shape[-1])
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise ValueError(
            f"attention: q has {q.shape[-2]} heads, k has {k.shape[-2]}; allowed: a multiple of those of k"
        )
    if q.dim() == 4:
        check_equal("attention", "the batch of q", q.shape[0], "that of k", k.shape[0])


def _queries(q: Tensor, cu_seqlens: Numbers | Spread | None, lengths: Numbers | None, padding: str | None) -> Spread:
    if lengths is None and padding is not None:
        raise ValueError(f"attention: padding is {padding!r} and lengths is None; allowed: both or neither")
    if cu_seqlens is not None:
        if lengths is not None:
            raise ValueError("attention: cu_seqlens and lengths are both given; allowed: one of them")
        return packed("cu_seqlens", q, cu_seqlens)
    if q.dim() != 4:
        raise ValueError(f"attention: q has shape {tuple(q.shape)} and cu_seqlens is None; allowed: (B, S, H, D)")
    return dense(q) if lengths is None else padded(q, lengths, padding)


def _keys(
    q: Tensor,
    k: Tensor,
    queries: Spread,
    cu_seqlens: Numbers | Spread | None,
    cu_seqlens_k: Numbers | None,
    lengths: Numbers | None,
    padding: str | None,
) -> Spread:
    if cu_seqlens_k is not None:
        if cu_seqlens is None:
            raise ValueError(
                "attention: cu_seqlens_k is given and cu_seqlens is None; allowed: both, or cu_seqlens alone"
            )
        keys = packed("cu_seqlens_k", k, cu_seqlens_k)
        name = "the number of sequences of cu_seqlens_k"
        check_equal("attention", name, keys.start.shape[0], "that of cu_seqlens", queries.start.shape[0])
        return keys
    if cu_seqlens is not None:
        check_equal("attention", "the number of tokens of k", k.shape[0], "that of q", q.shape[0])
        return queries
    if lengths is not None:
        check_equal("attention", "the row length of k with lengths", k.shape[1], "that of q", q.shape[1])
        return queries
    return queries if k.shape[1] == q.shape[1] else dense(k)


def _append(q: Tensor, k: Tensor | None, v: Tensor | None, queries: Spread, cache: Cache, backend: str) -> Spread:
    """The spread of the cache's keys, the new ones among them."""
    check_tensors("attention", backend, {"q": q, "k": k, "v": v, "the cache's k": cache.k})
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v)):
        raise ValueError(
            "attention: a cache keeps no gradients, an input requires one; allowed: within torch.no_grad()"
        )
    check_equal("attention", "the head size of q", q.shape[-1], "that of the cache", cache.k.shape[-1])
    if q.shape[-2] % cache.k.shape[-2]:
        raise ValueError(
            f"attention: q has {q.shape[-2]} heads, the cache has {cache.k.shape[-2]}; allowed: a multiple of those"
        )
    sequences = queries.start.shape[0]
    check_equal("attention", "the number of sequences of q", sequences, "that of the cache", len(cache.lengths))
    if k is not None and v is not None:
        _check_heads(q, k, v)
        if k.shape[:-2] != q.shape[:-2]:
            raise ValueError(
                f"attention: k has leading axes {tuple(k.shape[:-2])}, q has {tuple(q.shape[:-2])};"
                " with a cache they must agree"
            )
        cache.append_spread(flat(k), flat(v), queries)
    elif k is not None or v is not None:
        raise ValueError("attention: one of k and v is None; allowed: both or neither")
    return cache.spread()


_kernel = partial(kernel_module, __name__, "attention")


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_start: Tensor,
    q_length: Tensor,
    k_start: Tensor,
    k_length: Tensor,
    pages: Tensor | None,
    page_size: int,
    longest_query: int,
    longest_key: int,
    causal: bool,
    window: int,
    scale: float,
    softcap: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    if q.numel() == 0 or k.numel() == 0 or q_start.shape[0] == 0:
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device), q.new_full(
            q.shape[:2], math.inf, dtype=_lse_dtype(q)
        )
    sequences = Sequences(
        q_start=q_start,
        q_length=q_length,
        k_start=k_start,
        k_length=k_length,
        pages=pages,
        page_size=page_size,
        longest_query=longest_query,
        longest_key=longest_key,
    )
    rule = Rule(causal=causal, window=window, scale=scale, softcap=softcap)
    out, lse2 = _kernel(backend, q.device).forward(q, k, v, sequences, rule)
    return out, lse2


def _forward_fake(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:2], dtype=_lse_dtype(q))


def _gradients(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse2: Tensor,
    q_start: Tensor,
    q_length: Tensor,
    k_start: Tensor,
    k_length: Tensor,
    longest_query: int,
    longest_key: int,
    causal: bool,
    window: int,
    scale: float,
    softcap: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    if q.numel() == 0 or k.numel() == 0 or q_start.shape[0] == 0:
        dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        return dq, dk, dv
    sequences = Sequences(
        q_start=q_start,
        q_length=q_length,
        k_start=k_start,
        k_length=k_length,
        longest_query=longest_query,
        longest_key=longest_key,
    )
    rule = Rule(causal=causal, window=window, scale=scale, softcap=softcap)
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    kernel = _kernel(backend, q.device)
    dq, dk, dv = kernel.backward(dout, q, k, v, out.contiguous(), lse2.contiguous(), sequences, rule)
    return dq, dk, dv


def _gradients_fake(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return dq, dk, dv


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, q_start, q_length, k_start, k_length, pages, _, *ctx.rest = inputs
    if pages is not None:
        raise ValueError("attention: gradients through pages are not defined; allowed: within torch.no_grad()")
    out, lse2 = output
    ctx.mark_non_differentiable(lse2)
    ctx.save_for_backward(q, k, v, out, lse2, q_start, q_length, k_start, k_length)


def _backward(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv = call("attention_gradients", dout, *ctx.saved_tensors, *ctx.rest)
    return (dq, dk, dv, *[None] * 13)


_TABLES = "Tensor q_start, Tensor q_length, Tensor k_start, Tensor k_length"
_RULE = "SymInt longest_query, SymInt longest_key, bool causal, int window, float scale, float softcap, str backend"
register(
    f"attention(Tensor q, Tensor k, Tensor v, {_TABLES}, Tensor? pages, int page_size, {_RULE}) -> (Tensor, Tensor)",
    run=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    f"attention_gradients(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse2, {_TABLES}, {_RULE})"
    " -> (Tensor, Tensor, Tensor)",
    run=_gradients,
    fake=_gradients_fake,
)
