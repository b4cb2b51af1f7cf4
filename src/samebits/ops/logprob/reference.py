"""Log-probabilities of selected tokens, said plainly: the definition that every backend is held to.

Order: a logit is the product's chain over k, never rounded to the storage dtype. The vocabulary is cut into blocks of
256 columns at fixed places; a block b has its largest logit m_b and l_b, the sum of exp(z - m_b) folded by halves
(128, 64, ..., 1), where missing columns add nothing. Over the row m is the largest m_b, and l the chain
fma(l_b, exp(m_b - m), l), blocks ascending from +0. logprob = (z_t - m) - log(l); lse = m + log(l).
Gradient: dz = g * ((v == t) - exp(z - lse)), rounded to the storage dtype; that of hidden is the chain over the
vocabulary of dz weight, that of weight the chain over rows of dz hidden. Ignored rows: logprob +0, dz +0.
In float64 the same formulas are plain torch, exact enough to judge the others against."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.numerics.fma import fma32
from samebits.ops.matmul.reference import gemm

# Decides bits: columns of a vocabulary block.
BLOCK: Final = 256

# Infinities, and what comes of them, are data like any other.
_quietly = np.errstate(invalid="ignore", over="ignore")


@_quietly
def forward(hidden_MK: Tensor, weight_VK: Tensor, ids_M: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """(logprob, log-sum-exp) of every row."""
    if hidden_MK.dtype == torch.float64:
        logits64_MV = hidden_MK @ weight_VK.T
        lse64_M = logits64_MV.logsumexp(-1)
        return _selected(logits64_MV, ids_M, ignore_index) - torch.where(ids_M == ignore_index, 0.0, lse64_M), lse64_M
    largest_M, logarithm_M, logits_MV = _statistics(hidden_MK, weight_VK)
    selected_M = _selected(torch.from_numpy(logits_MV), ids_M.cpu(), ignore_index).numpy()
    logprob_M, lse_M = (selected_M - largest_M) - logarithm_M, largest_M + logarithm_M
    logprob_M[ids_M.cpu().numpy() == ignore_index] = 0.0
    return torch.from_numpy(logprob_M).to(hidden_MK.device), torch.from_numpy(lse_M).to(hidden_MK.device)


def of_logits(logits_MV: Tensor, ids_M: Tensor, ignore_index: int) -> Tensor:
    """Logits as the weight of a hidden row of one number, which is 1: the product's chain leaves them as they are."""
    one = torch.ones(1, 1, dtype=logits_MV.dtype, device=logits_MV.device)
    rows = zip(logits_MV, torch.split(ids_M, 1), strict=True)
    return torch.cat([forward(one, logits_V[:, None], id, ignore_index)[0] for logits_V, id in rows])


def _statistics(hidden_MK: Tensor, weight_VK: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(m, log(l), logits)."""
    logits_MV = _logits(hidden_MK, weight_VK)
    rows, vocabulary = logits_MV.shape
    blocks = -(-vocabulary // BLOCK)
    padded = np.full((rows, blocks * BLOCK), -np.inf, np.float32)
    padded[:, :vocabulary] = logits_MV
    z_MBL = padded.reshape(rows, blocks, BLOCK)
    largest_MB = np.fmax.reduce(z_MBL, axis=2, initial=np.float32(-np.inf))
    shift_MB = np.where(np.isneginf(largest_MB), np.float32(0), largest_MB)
    sums_MBL = evaluate("exp", z_MBL - shift_MB[..., None])
    half = BLOCK // 2
    while half:
        sums_MBL = sums_MBL[..., :half] + sums_MBL[..., half : 2 * half]
        half //= 2
    largest_M = np.fmax.reduce(largest_MB, axis=1)
    sum_M = np.zeros(rows, np.float32)
    for b in range(blocks):
        sum_M = fma32(sums_MBL[:, b, 0], evaluate("exp", largest_MB[:, b] - largest_M), sum_M)
    return largest_M, evaluate("log", sum_M), logits_MV


@_quietly
def logit_gradient(
    dlogprob_M: Tensor,
    hidden_MK: Tensor,
    weight_CK: Tensor,
    ids_M: Tensor,
    lse_M: Tensor,
    ignore_index: int,
    first: int,
    dz_MC: Tensor,
) -> None:
    """The gradient of the logits of columns `first`, `first` + 1, ..., whose weights are given, into dz."""
    columns = torch.arange(first, first + weight_CK.shape[0], device=ids_M.device)
    own_MC, ignored_M1 = ids_M[:, None] == columns, (ids_M == ignore_index)[:, None]
    if hidden_MK.dtype == torch.float64:
        probability = (hidden_MK @ weight_CK.T - lse_M[:, None]).exp()
        dz_MC.copy_(torch.where(ignored_M1, 0.0, dlogprob_M[:, None] * (own_MC.double() - probability)))
        return
    lse_M1, g_M1 = lse_M.cpu().numpy()[:, None], dlogprob_M.detach().cpu().numpy()[:, None]
    probability_MC = evaluate("exp", _logits(hidden_MK, weight_CK) - lse_M1)
    dz = g_M1 * (own_MC.cpu().numpy().astype(np.float32) - probability_MC)
    dz_MC.copy_(torch.where(ignored_M1, 0.0, torch.from_numpy(dz).to(dz_MC.device)))


def logprob64(hidden: Tensor, weight: Tensor, ids: Tensor, ignore_index: int = -100) -> Tensor:
    """logprob[m] = z[m,t] - log sum_v exp z[m,v], z[m,v] = sum_k hidden[m,k] weight[v,k], in float64; 0 if ignored."""
    return forward(hidden.double(), weight.double(), ids, ignore_index)[0]


def _logits(hidden_MK: Tensor, weight_VK: Tensor) -> np.ndarray:
    zeros = torch.zeros(hidden_MK.shape[0], weight_VK.shape[0], dtype=torch.float32)
    return gemm(hidden_MK.cpu(), weight_VK.cpu().T, accumulator_MN=zeros).numpy()


def _selected(logits_MV: Tensor, ids_M: Tensor, ignore_index: int) -> Tensor:
    """The logit of every row's own token; +0 where the row is ignored."""
    ignored_M = ids_M == ignore_index
    selected_M = logits_MV.gather(1, ids_M.masked_fill(ignored_M, 0)[:, None])[:, 0]
    return torch.where(ignored_M, 0.0, selected_M)
