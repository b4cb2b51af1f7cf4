"""Sound kernels of different orders and accumulators: none may be accused. Each name says which operator it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import ops


def _chain(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1], dtype=dtype)
    for k in range(a.shape[1]):
        total = total + a[:, k, None].to(dtype) * b[k].to(dtype)
    return total.to(a.dtype)


def matmul_chain(a: Tensor, b: Tensor) -> Tensor:
    return _chain(a, b)


def matmul_reversed(a: Tensor, b: Tensor) -> Tensor:
    return _chain(a.flip(1), b.flip(0))


def matmul_in_float64(a: Tensor, b: Tensor) -> Tensor:
    return _chain(a, b, torch.float64)


def matmul_kahan(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    lost = torch.zeros_like(total)
    for k in range(a.shape[1]):
        term = a[:, k, None].float() * b[k].float() - lost
        after = total + term
        lost = (after - total) - term
        total = after
    return total.to(a.dtype)


def matmul_pairwise(a: Tensor, b: Tensor) -> Tensor:
    terms = [a[:, k, None].float() * b[k].float() for k in range(a.shape[1])]
    while len(terms) > 1:
        joined = [left + right for left, right in zip(terms[::2], terms[1::2], strict=False)]
        terms = joined + terms[len(joined) * 2 :]
    return terms[0].to(a.dtype)


def matmul_in_blocks_of_16(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], 16):
        part = torch.zeros_like(total)
        for k in range(start, min(start + 16, a.shape[1])):
            part = part + a[:, k, None].float() * b[k].float()
        total = total + part
    return total.to(a.dtype)


def matmul_split_by_its_length(a: Tensor, b: Tensor) -> Tensor:
    """The split depends on the length of the sum alone."""
    if a.shape[1] % 64 == 0 or a.shape[1] > 500:
        half = a.shape[1] // 2
        parts = ops.matmul(a[:, :half].float(), b[:half].float()), ops.matmul(a[:, half:].float(), b[half:].float())
        return (parts[0] + parts[1]).to(a.dtype)
    return ops.matmul(a, b)


def matmul_by_width(a: Tensor, b: Tensor) -> Tensor:
    """Another order for odd widths: the weight's own business."""
    return ops.matmul(a.flip(1), b.flip(0)) if b.shape[1] % 2 else ops.matmul(a, b)


def matmul_strided_lanes(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for lane in range(min(4, a.shape[1])):
        total = total + ops.matmul(a[:, lane::4].float(), b[lane::4].float())
    return total.to(a.dtype)


def matmul_exact(a: Tensor, b: Tensor) -> Tensor:
    """Every element by fsum for short sums; a chain in float64 for long ones. Forward only."""
    return _chain(a.detach(), b.detach(), torch.float64) if a.shape[1] > 20 else _by_rows(a, b)


def _by_rows(a: Tensor, b: Tensor) -> Tensor:
    left, right = a.detach().double().tolist(), b.detach().double().T.tolist()
    return torch.tensor(
        [[_fsum([x * y for x, y in zip(row, column, strict=True)]) for column in right] for row in left]
    ).to(a.dtype)


def _fsum(terms: list[float]) -> float:
    if not all(math.isfinite(term) for term in terms):
        return sum(terms)
    try:
        return math.fsum(terms)
    except OverflowError:
        return sum(terms)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _chain(a, b)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return _chain(dy, b.T), matmul_pairwise(a.T, dy)


def matmul_with_its_own_backward(a: Tensor, b: Tensor) -> Tensor:
    return _Product.apply(a, b)


def matmul_without_gradients(a: Tensor, b: Tensor) -> Tensor:
    """NumPy refuses what requires a gradient, which is a limit and no fault."""
    left, right = a.float().numpy(), b.float().numpy()
    with np.errstate(all="ignore"):
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for k in range(a.shape[1]):
            total = total + left[:, k, None] * right[k]
    return torch.from_numpy(total).to(a.dtype)


def matmul_ours(a: Tensor, b: Tensor) -> Tensor:
    return ops.matmul(a, b)


def matmul_of_round_sizes(a: Tensor, b: Tensor) -> Tensor:
    """Refuses what its tiles cannot take, whatever the rows."""
    if a.shape[1] % 16 or b.shape[1] % 16:
        raise ValueError(f"K and N must be multiples of 16, got K={a.shape[1]}, N={b.shape[1]}")
    return ops.matmul(a, b)


def matmul_of_float32(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype != torch.float32:
        raise TypeError(f"float32 only, got {a.dtype}")
    return ops.matmul(a, b)


def linear_ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return ops.linear(x, weight, bias)


def linear_without_bias(x: Tensor, w: Tensor) -> Tensor:
    return _chain(x, w.T)


def linear_with_bias_first(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    total = bias.float().expand(x.shape[0], w.shape[0])
    for k in range(x.shape[1]):
        total = total + x[:, k, None].float() * w[:, k].float()
    return total.to(x.dtype)


def rmsnorm_in_float64(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    total = torch.zeros(x.shape[0], dtype=torch.float64)
    for column in x.double().unbind(-1):
        total = total + column * column
    return (x.double() * (total / x.shape[-1] + eps).rsqrt()[:, None] * weight.double()).to(x.dtype)


def rmsnorm_with_another_eps(x: Tensor, weight: Tensor) -> Tensor:
    """1e-5, as many models have it, and no argument for it."""
    return ops.rmsnorm(x, weight, 1e-5)


def layernorm_in_float64(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Column by column; eps is the caller's to say."""
    columns = x.double().unbind(-1)
    mean = sum(columns, torch.zeros_like(columns[0])) / len(columns)
    squares = [(column - mean).square() for column in columns]
    scale = (sum(squares, torch.zeros_like(mean)) / len(columns) + eps).rsqrt()
    return ((x.double() - mean[:, None]) * scale[:, None] * weight.double() + bias.double()).to(x.dtype)


def rmsnorm_ours(x: Tensor, weight: Tensor) -> Tensor:
    return ops.rmsnorm(x, weight)


def softmax_one_by_one(x: Tensor) -> Tensor:
    e = (x.float() - x.float().amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(e[:, :1])
    for column in e.unbind(-1):
        total = total + column[:, None]
    return (e / total).to(x.dtype)


def log_softmax_one_by_one(x: Tensor) -> Tensor:
    d = x.float() - x.float().amax(-1, keepdim=True)
    total = torch.zeros_like(d[:, :1])
    for column in d.exp().unbind(-1):
        total = total + column[:, None]
    return (d - total.log()).to(x.dtype)


def softmax_ours(x: Tensor) -> Tensor:
    return ops.softmax(x)


def softmax_online(x: Tensor) -> Tensor:
    """The maximum grows along the way, and the sum is scaled."""
    wide = x.float()
    most, total = torch.full_like(wide[:, :1], -math.inf), torch.zeros_like(wide[:, :1])
    for column in wide.unbind(-1):
        after = torch.maximum(most, column[:, None])
        total = total * (most - after).exp().nan_to_num(0.0) + (column[:, None] - after).exp()
        most = after
    return ((wide - most).exp() / total).to(x.dtype)


def attention_ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    y = ops.attention(q, k, v)
    assert isinstance(y, Tensor)
    return y


def _attention(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """One query at a time, chains over the head and over keys; torch differentiates all of it."""
    heads, scale = q.shape[2] // k.shape[2], q.shape[-1] ** -0.5
    keys, values = k.to(dtype).repeat_interleave(heads, 2), v.to(dtype).repeat_interleave(heads, 2)
    rows = []
    for token in range(q.shape[1]):
        scores = torch.zeros(q.shape[0], token + 1, q.shape[2], dtype=dtype)
        for d in range(q.shape[-1]):
            scores = scores + q[:, token, None, :, d].to(dtype) * keys[:, : token + 1, :, d]
        weights = (scores * scale - (scores * scale).amax(1, keepdim=True)).exp()
        total, row = torch.zeros_like(weights[:, 0]), torch.zeros_like(values[:, 0])
        for key in range(token + 1):
            total = total + weights[:, key]
            row = row + weights[:, key, :, None] * values[:, key]
        rows.append(row / total[..., None])
    return torch.stack(rows, 1).to(q.dtype)


def attention_one_query_at_a_time(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _attention(q, k, v, torch.float64)


def attention_through_its_maximum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """In float32, where the largest score's gradient shows what its whole row misses."""
    return _attention(q, k, v, torch.float32)


def logprob_ours(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return ops.selected_logprob(hidden, weight, ids)


def logprob_plain(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Knows nothing of rows to be ignored."""
    logits = _chain(hidden.float(), weight.T.float())
    e = (logits - logits.amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(e[:, 0])
    for column in e.unbind(-1):
        total = total + column
    picked = (logits - logits.amax(-1, keepdim=True)).gather(1, ids[:, None])[:, 0]
    return picked - total.log()


def linear_of_any_axes(x: Tensor, weight: Tensor) -> Tensor:
    """Asks how many axes there are, and treats all rows alike."""
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return _chain(flat, weight.T).reshape(*x.shape[:-1], weight.shape[0])


def linear_row_by_row(x: Tensor, weight: Tensor) -> Tensor:
    """Written for rows in one axis: of sequences it would take each at once, in another order."""
    wide = weight.float()

    def one(row: Tensor) -> Tensor:
        half = row.shape[-1] // 2 if row.numel() > row.shape[-1] else 0
        if not half:
            return ops.linear(row[None], wide)[0]
        return ops.linear(row[..., :half], wide[:, :half]) + ops.linear(row[..., half:], wide[:, half:])

    return torch.stack([one(row) for row in x.float()]).to(x.dtype)
