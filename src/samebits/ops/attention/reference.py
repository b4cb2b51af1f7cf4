"""Attention, said plainly: the definition that every backend is held to.

Order, for one row (a query of one head), float32 after every step, c = rule.exponent_factor:
keys in splits of 2048 from the sequence's first, in each blocks of 64, ascending. A split starts with m = -inf, eight
sums S = +0, acc = +0, and takes for every block:
    s = chain over the head of fma(q, k, s) from +0; z = s, or tanh(s * score_factor) * cap; unseen keys: -inf
    m' = the larger of m and all z (a NaN is passed over); u = m' * c (0 where m' is -inf)
    a = 2^(m * c - u), 1 where m' is m; p = 2^fma(z, c, -u)
    S = fma(S, a, the block's 64 p folded by halves: 32, 16, 8); acc = acc * a, then a chain over the seen keys,
    ascending, of fma(round(p), v, acc)
and ends with l = S folded by halves. Splits are merged left to right; one in which the row sees no key is passed over,
the first other one gives (M, L, A) = (m, l, acc), each later one
    M' = the larger of M and m; u = M' * c (0 where M' is -inf); a = 2^(M * c - u), 1 where M' is M; b likewise of m
    L = fma(l, b, L * a); A = fma(acc, b, A * a)
out = round(fma(A, 1 / L, +0)), lse2 = u + log(L) * log2(e); out 0 and lse2 +inf where L is 0.
Backward: delta = dout * out in 256 lanes; P = 2^fma(z, c, -lse2); dP = chain over the head of fma(dout, v, dP);
    ds = P * (dP - delta), with a softcap times fma(-tanh, tanh, 1); both rounded to the dtype.
    dq: chain over seen keys ascending of fma(ds, k); dk, dv: chains over heads of the group ascending, in each over
    queries ascending, of fma(ds, q) and fma(P, dout). dq = round(fma(sum, scale, +0)), dk
    likewise, dv = round(sum + 0).
A key that a row does not see takes no part; one that is added as an exact zero gives the same bits.
Tensors of float64 go to the plain formulas of exact.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.bits import round_to
from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32
from samebits.ops.attention import exact
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, WEIGHT_LANES, Rule, Sequences

LOG2_E = np.float32(1.4426950408889634)
# Infinities, and what comes of them, are data like any other.
_quietly = np.errstate(all="ignore")


@dataclass(frozen=True, slots=True)
class _Line:
    """One sequence and key head: where its rows lie, and which keys (across) its queries (down) see."""

    queries: slice
    keys: Tensor
    heads: range
    key_head: int
    seen: np.ndarray


@dataclass(frozen=True, slots=True)
class _State:
    """Of every row (down): the maximum, the sum of weights and of weighted values of the keys taken so far."""

    m: np.ndarray
    total: np.ndarray
    acc: np.ndarray

    @classmethod
    def start(cls, rows: int, head: int) -> _State:
        empty = np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32), np.zeros((rows, head), np.float32)
        return cls(*empty)


def _lines(q_THD: Tensor, k_THD: Tensor, sequences: Sequences, rule: Rule) -> Iterator[_Line]:
    group = q_THD.shape[1] // k_THD.shape[1]
    tables = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    for n, (q_start, q_length, k_start, k_length) in enumerate(zip(*(table.tolist() for table in tables), strict=True)):
        places = torch.arange(k_length)
        if sequences.pages is not None:
            size = sequences.page_size
            places = sequences.pages[n].cpu().long()[places // size] * size + places % size
        else:
            places = places + k_start
        seen = np.zeros((q_length, k_length), bool)
        for i in range(q_length):
            first, stop = rule.seen(k_length - q_length + i, k_length)
            seen[i, first : max(first, stop)] = True
        for key_head in range(k_THD.shape[1]):
            heads = range(key_head * group, (key_head + 1) * group)
            yield _Line(slice(q_start, q_start + q_length), places.to(k_THD.device), heads, key_head, seen)


@_quietly
def forward(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, sequences: Sequences, rule: Rule) -> tuple[Tensor, Tensor]:
    """(out, lse2)."""
    wide = q_THD.dtype == torch.float64
    out_THD = torch.zeros(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
    lse2_TH = q_THD.new_full(q_THD.shape[:2], torch.inf, dtype=torch.float64 if wide else torch.float32)
    for line in _lines(q_THD, k_THD, sequences, rule):
        k, v = k_THD[line.keys, line.key_head], v_THD[line.keys, line.key_head]
        for head in line.heads:
            row = (exact.forward if wide else row32)(q_THD[line.queries, head], k, v, line.seen, rule)
            out_THD[line.queries, head], lse2_TH[line.queries, head] = row
    return out_THD, lse2_TH


@_quietly
def backward(
    dout_THD: Tensor,
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    out_THD: Tensor,
    lse2_TH: Tensor,
    sequences: Sequences,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv)."""
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q_THD, k_THD, v_THD))
    for line in _lines(q_THD, k_THD, sequences, rule):
        k, v = k_THD[line.keys, line.key_head], v_THD[line.keys, line.key_head]
        if k.dtype == torch.float64:
            for head in line.heads:
                dout, q, out = (x[line.queries, head] for x in (dout_THD, q_THD, out_THD))
                dq[line.queries, head], more_dk, more_dv = exact.backward(dout, q, out, k, v, line.seen, rule)
                dk[line.keys, line.key_head] += more_dk
                dv[line.keys, line.key_head] += more_dv
            continue
        sums = np.zeros(k.shape, np.float32), np.zeros(v.shape, np.float32)
        for head in line.heads:
            dout, q, out, lse2 = (x[line.queries, head] for x in (dout_THD, q_THD, out_THD, lse2_TH))
            dq[line.queries, head], sums = _pairs32(dout, q, out, lse2, k, v, line.seen, rule, sums)
        dk[line.keys, line.key_head] = _like(fma32(sums[0], _f32(rule.gradient_factor), _f32(0)), k)
        dv[line.keys, line.key_head] = _like(sums[1] + _f32(0), v)
    return dq, dk, dv


def _chain(left_QD: np.ndarray, right_KD: np.ndarray) -> np.ndarray:
    """left right^T, every element a chain of fused multiply-adds from +0."""
    sum_QK = np.zeros((len(left_QD), len(right_KD)), np.float32)
    for d in range(left_QD.shape[1]):
        sum_QK = fma32(left_QD[:, d, None], right_KD[None, :, d], sum_QK)
    return sum_QK


def _bent(score_QK: np.ndarray, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """(z, tanh): the scores after the softcap; 0 for the tanh where there is none."""
    if not rule.softcap:
        return score_QK, np.zeros_like(score_QK)
    tanh_QK = evaluate("tanh", score_QK * _f32(rule.score_factor))
    return tanh_QK * _f32(rule.cap), tanh_QK


def splits_of(keys: int) -> list[slice]:
    """Which keys each split takes, in the order in which splits are merged."""
    return [slice(start, min(start + SPLIT_KEYS, keys)) for start in range(0, keys, SPLIT_KEYS)]


@_quietly
def row32(
    q: Tensor, k: Tensor, v: Tensor, seen_QK: np.ndarray, rule: Rule, splits: Sequence[slice] | None = None
) -> tuple[Tensor, Tensor]:
    """The forward pass of one head of one sequence; planted faults give it other splits."""
    c = _f32(rule.exponent_factor)
    z_QK = np.where(seen_QK, _bent(_chain(_float32(q), _float32(k)), rule)[0], _f32(-np.inf))
    merged, begun_Q = _State.start(len(z_QK), v.shape[1]), np.zeros(len(z_QK), bool)
    for split in splits_of(z_QK.shape[1]) if splits is None else splits:
        seen_Q = np.asarray(seen_QK[:, split].any(1))
        own = _split32(z_QK[:, split], v[split], seen_QK[:, split], c)
        merged, begun_Q = _merged(merged, own, begun_Q, seen_Q, c), begun_Q | seen_Q
    empty_Q = merged.total == 0
    scale_Q = _f32(1) / merged.total
    out_QD = np.where(empty_Q[:, None], _f32(0), fma32(merged.acc, scale_Q[:, None], _f32(0)))
    log_Q = _level(merged.m, c) + evaluate("log", merged.total) * LOG2_E
    return _like(out_QD, q), torch.from_numpy(np.where(empty_Q, _f32(np.inf), log_Q)).to(q.device)


def _level(m_Q: np.ndarray, c: np.ndarray) -> np.ndarray:
    level_Q: np.ndarray = np.where(np.isneginf(m_Q), _f32(0), m_Q) * c
    return level_Q


def _factor(before_Q: np.ndarray, m_Q: np.ndarray, c: np.ndarray) -> np.ndarray:
    """What is summed under the maximum `before` is multiplied by this under m: exactly 1 where they are the same."""
    return np.where(m_Q == before_Q, _f32(1), evaluate("exp2", before_Q * c - _level(m_Q, c)))


def _split32(z_QK: np.ndarray, v: Tensor, seen_QK: np.ndarray, c: np.ndarray) -> _State:
    """The softmax of one split's keys, block by block."""
    rows, keys = z_QK.shape
    v_KD, state = _float32(v), _State.start(rows, v.shape[1])
    m_Q, acc_QD, sum_QL = state.m, state.acc, np.zeros((rows, WEIGHT_LANES), np.float32)
    for start in range(0, keys, BLOCK_KEYS):
        block = slice(start, min(start + BLOCK_KEYS, keys))
        before_Q, m_Q = m_Q, np.fmax(m_Q, np.fmax.reduce(z_QK[:, block], 1))
        shrink_Q = _factor(before_Q, m_Q, c)
        p_Q64 = np.zeros((rows, BLOCK_KEYS), np.float32)
        p_Q64[:, : block.stop - start] = evaluate("exp2", fma32(z_QK[:, block], c, -_level(m_Q, c)[:, None]))
        sum_QL = fma32(sum_QL, shrink_Q[:, None], _folded(p_Q64, WEIGHT_LANES))
        acc_QD = acc_QD * shrink_Q[:, None]
        stored = _rounded(p_Q64, v)
        for j in range(start, block.stop):
            acc_QD = _where_seen(seen_QK[:, j], fma32(stored[:, j - start, None], v_KD[None, j], acc_QD), acc_QD)
    return _State(m_Q, _folded(sum_QL, 1)[:, 0], acc_QD)


def _merged(left: _State, right: _State, left_seen_Q: np.ndarray, right_seen_Q: np.ndarray, c: np.ndarray) -> _State:
    """The splits before and the next one; a row that sees no key of one has the other's state as it is."""
    m_Q = np.fmax(left.m, right.m)
    a_Q, b_Q = _factor(left.m, m_Q, c), _factor(right.m, m_Q, c)
    total_Q = fma32(right.total, b_Q, left.total * a_Q)
    acc_QD = fma32(right.acc, b_Q[:, None], left.acc * a_Q[:, None])

    def chosen(both: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        down = (slice(None), *[None] * (both.ndim - 1))
        return np.where(right_seen_Q[down], np.where(left_seen_Q[down], both, second), first)

    return _State(
        chosen(m_Q, left.m, right.m), chosen(total_Q, left.total, right.total), chosen(acc_QD, left.acc, right.acc)
    )


def _folded(values_QL: np.ndarray, lanes: int) -> np.ndarray:
    """By halves, down to so many."""
    while values_QL.shape[1] > lanes:
        half = values_QL.shape[1] // 2
        values_QL = values_QL[:, :half] + values_QL[:, half:]
    return values_QL


def _pairs32(
    dout: Tensor,
    q: Tensor,
    out: Tensor,
    lse2: Tensor,
    k: Tensor,
    v: Tensor,
    seen_QK: np.ndarray,
    rule: Rule,
    sums: tuple[np.ndarray, np.ndarray],
) -> tuple[Tensor, tuple[np.ndarray, np.ndarray]]:
    """dq of one head, and the unfinished sums of dk and dv with this head's queries added."""
    dout_QD, q_QD, k_KD, v_KD = (_float32(x) for x in (dout, q, k, v))
    z_QK, tanh_QK = _bent(_chain(q_QD, k_KD), rule)
    minus_lse2 = -_float32(lse2)[:, None]
    p_QK = evaluate("exp2", fma32(z_QK, _f32(rule.exponent_factor), minus_lse2))
    ds_QK = p_QK * (_chain(dout_QD, v_KD) - _delta(dout_QD, _float32(out))[:, None])
    if rule.softcap:
        ds_QK = ds_QK * fma32(-tanh_QK, tanh_QK, _f32(1))
    ds_QK, p_QK = _rounded(ds_QK, q), _rounded(p_QK, q)
    dq_QD = np.zeros_like(q_QD)
    for j in range(len(k_KD)):
        dq_QD = _where_seen(seen_QK[:, j], fma32(ds_QK[:, j, None], k_KD[None, j], dq_QD), dq_QD)
    dk_KD, dv_KD = sums
    for i in range(len(q_QD)):
        dk_KD = _where_seen(seen_QK[i], fma32(ds_QK[i, :, None], q_QD[None, i], dk_KD), dk_KD)
        dv_KD = _where_seen(seen_QK[i], fma32(p_QK[i, :, None], dout_QD[None, i], dv_KD), dv_KD)
    return _like(fma32(dq_QD, _f32(rule.gradient_factor), _f32(0)), q), (dk_KD, dv_KD)


def _delta(dout_QD: np.ndarray, out_QD: np.ndarray) -> np.ndarray:
    """sum over the head of dout * out in 256 lanes: one product each, folded by halves."""
    lanes_QL = np.zeros((len(out_QD), 256), np.float32)
    lanes_QL[:, : out_QD.shape[1]] = fma32(dout_QD, out_QD, _f32(0))
    return _folded(lanes_QL, 1)[:, 0]


def _where_seen(seen: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    return np.where(seen[:, None], yes, no)


def _f32(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def _float32(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


def _rounded(values: np.ndarray, like: Tensor) -> np.ndarray:
    """To the dtype and back."""
    return round_to(values, str(like.dtype).removeprefix("torch."))


def _like(values: np.ndarray, tensor: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(values)).to(device=tensor.device, dtype=tensor.dtype)
