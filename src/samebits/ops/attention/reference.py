"""Attention, said plainly: the definition that every backend is held to.

Order, for one row (a query of one head), float32 after every step, c = rule.exponent_factor:
keys in blocks of 64 from the sequence's first, ascending; state m = -inf, eight sums L = +0, acc = +0.
    s = chain over the head of fma(q, k, s) from +0; z = s, or tanh(s * score_factor) * cap; unseen keys: -inf
    m' = the larger of m and all z (a NaN is passed over); u = m' * c (0 where m' is -inf)
    a = 2^(m * c - u), 1 where m' is m; p = 2^fma(z, c, -u)
    L = fma(L, a, the block's 64 p folded by halves: 32, 16, 8); acc = acc * a, then a chain over the seen keys,
    ascending, of fma(round(p), v, acc)
l = L folded by halves; out = round(fma(acc, 1 / l, +0)), lse2 = u + log(l) * log2(e); out 0 and lse2 +inf where l is 0.
Backward: delta = dout * out in 256 lanes; P = 2^fma(z, c, -lse2); dP = chain over the head of fma(dout, v, dP);
    ds = P * (dP - delta), with a softcap times fma(-tanh, tanh, 1); both rounded to the dtype.
    dq: chain over seen keys ascending of fma(ds, k); dk, dv: chains over heads of the group ascending, in each over
    queries ascending, of fma(ds, q) and fma(P, dout). dq = round(fma(sum, scale, +0)), dk
    likewise, dv = round(sum + 0).
A key that a row does not see takes no part; one that is added as an exact zero gives the same bits.
Tensors of float64 go to the plain formulas of exact.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.bits import round_to
from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32
from samebits.ops.attention import exact
from samebits.ops.attention.forms import BLOCK_KEYS, WEIGHT_LANES, Rule, Sequences

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
            row = (exact.forward if wide else _row32)(q_THD[line.queries, head], k, v, line.seen, rule)
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


def _row32(q: Tensor, k: Tensor, v: Tensor, seen_QK: np.ndarray, rule: Rule) -> tuple[Tensor, Tensor]:
    """The forward pass of one head of one sequence."""
    c, v_KD = _f32(rule.exponent_factor), _float32(v)
    z_QK = np.where(seen_QK, _bent(_chain(_float32(q), _float32(k)), rule)[0], _f32(-np.inf))
    (rows, keys), head = z_QK.shape, v_KD.shape[1]
    m_Q = np.full(rows, -np.inf, np.float32)
    sum_QL, acc_QD = np.zeros((rows, WEIGHT_LANES), np.float32), np.zeros((rows, head), np.float32)
    level_Q = np.zeros(rows, np.float32)
    for start in range(0, keys, BLOCK_KEYS):
        block = slice(start, min(start + BLOCK_KEYS, keys))
        before_Q, m_Q = m_Q, np.fmax(m_Q, np.fmax.reduce(z_QK[:, block], 1))
        level_Q = np.where(np.isneginf(m_Q), _f32(0), m_Q) * c
        shrink_Q = np.where(m_Q == before_Q, _f32(1), evaluate("exp2", before_Q * c - level_Q))
        p_Q64 = np.zeros((rows, BLOCK_KEYS), np.float32)
        p_Q64[:, : block.stop - start] = evaluate("exp2", fma32(z_QK[:, block], c, -level_Q[:, None]))
        folded = p_Q64
        while folded.shape[1] > WEIGHT_LANES:
            half = folded.shape[1] // 2
            folded = folded[:, :half] + folded[:, half:]
        sum_QL = fma32(sum_QL, shrink_Q[:, None], folded)
        acc_QD = acc_QD * shrink_Q[:, None]
        stored = _rounded(p_Q64, v)
        for j in range(start, block.stop):
            acc_QD = _where_seen(seen_QK[:, j], fma32(stored[:, j - start, None], v_KD[None, j], acc_QD), acc_QD)
    while sum_QL.shape[1] > 1:
        half = sum_QL.shape[1] // 2
        sum_QL = sum_QL[:, :half] + sum_QL[:, half:]
    total_Q = sum_QL[:, 0]
    out_QD = np.where(total_Q[:, None] == 0, _f32(0), fma32(acc_QD, (_f32(1) / total_Q)[:, None], _f32(0)))
    lse2_Q = np.where(total_Q == 0, _f32(np.inf), level_Q + evaluate("log", total_Q) * LOG2_E)
    return _like(out_QD, q), torch.from_numpy(lse2_Q).to(q.device)


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
    while lanes_QL.shape[1] > 1:
        half = lanes_QL.shape[1] // 2
        lanes_QL = lanes_QL[:, :half] + lanes_QL[:, half:]
    return lanes_QL[:, 0]


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
