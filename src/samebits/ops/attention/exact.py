"""Attention in float64, in plain torch: what the contract's equations say, and what other results are judged against.

Knows no order: float64 is exact enough that none is needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samebits.ops.attention.cache import PAGE_MULTIPLE
from samebits.ops.attention.forms import Rule


def weights_and_lse(q: Tensor, k: Tensor, seen_QK: np.ndarray, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """(weights, slope of the softcap, lse in powers of two); rows that see no key have weights 0 and lse +inf."""
    seen = torch.from_numpy(seen_QK).to(q.device)
    score = q @ k.T * rule.scale
    tanh = torch.tanh(score / rule.softcap) if rule.softcap else torch.zeros_like(score)
    score = tanh * rule.softcap if rule.softcap else score
    lse = torch.where(seen.any(-1), score.masked_fill(~seen, -torch.inf).logsumexp(-1), torch.inf)
    return (score - lse[:, None]).exp().masked_fill(~seen, 0.0), 1 - tanh.square(), lse / np.log(2.0)


def forward(q: Tensor, k: Tensor, v: Tensor, seen_QK: np.ndarray, rule: Rule) -> tuple[Tensor, Tensor]:
    """(out, lse2) of one head of one sequence."""
    weights_QK, _, lse2_Q = weights_and_lse(q, k, seen_QK, rule)
    return weights_QK @ v, lse2_Q


def backward(
    dout: Tensor, q: Tensor, out: Tensor, k: Tensor, v: Tensor, seen_QK: np.ndarray, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of one head of one sequence."""
    weights, slope, _ = weights_and_lse(q, k, seen_QK, rule)
    dscore = weights * (dout @ v.T - (dout * out).sum(-1, keepdim=True)) * slope * rule.scale
    return dscore @ k, dscore.T @ q, weights.T @ dout


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a subject of the contract fixes; 0 means none."""

    causal: bool = True
    window: int = 0
    softcap: float = 0.0


FULL, WINDOWED, CAPPED = Options(causal=False), Options(window=19), Options(softcap=3.0)


def attention64(q: Tensor, k: Tensor, v: Tensor, options: Options | None = None) -> Tensor:
    """out = softmax over seen keys of (q k / sqrt(D), bent by the softcap) times v; (B, S, H, D)."""
    weights, _ = dense_weights(q, k, options or Options())
    return torch.einsum("bhij,bjhd->bihd", weights, repeated(v, q))


def dense_weights(q: Tensor, k: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """(weights, scores after the softcap), each (B, H, S, keys)."""
    queries, keys, softcap = q.shape[1], k.shape[1], options.softcap
    score = torch.einsum("bihd,bjhd->bhij", q.double(), repeated(k, q)) * q.shape[-1] ** -0.5
    score = torch.tanh(score / softcap) * softcap if softcap else score
    distance = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)[None, :]
    unseen = (distance < 0) & options.causal
    if options.window:
        unseen = unseen | (distance.abs() >= options.window)
    return score.masked_fill(unseen.to(q.device), -torch.inf).softmax(-1), score


def repeated(x: Tensor, q: Tensor) -> Tensor:
    """A key head for every query head, in float64."""
    return x.double().repeat_interleave(q.shape[2] // x.shape[2], 2)


def full64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention64(q, k, v, FULL)


def windowed64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention64(q, k, v, WINDOWED)


def capped64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention64(q, k, v, CAPPED)


def cache_bytes64(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Bytes of a dense cache of as many tokens as k has, and of one in pages of 16."""
    batch, tokens, key_heads, head = k.shape
    each = 2 * batch * key_heads * head * k.element_size()
    return torch.tensor([each * tokens, each * -(-tokens // PAGE_MULTIPLE) * PAGE_MULTIPLE])
