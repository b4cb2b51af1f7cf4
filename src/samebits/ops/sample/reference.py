"""Sampling, said plainly: the definition that every backend is held to.

Scores z = x * (1 / temperature). top_k keeps z >= the k-th largest. top_p: e = exp(z - max); total and the sum of every
candidate set are lanes-256 sums (terms left out add nothing); the threshold is the largest float32 t whose set
{e >= t} still sums to top_p * total. Such sums of a fixed tree never shrink when a term is added, so bisection finds t.
Then the largest z + g of the kept, the first of equals, g = -log(-log(u)), u in (0, 1) from 23 bits of a random word.
Rounding: float32 after every step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.numerics.elementary.philox import philox_blocks

# Decides bits: how many partial sums a row has. Part of the order `lanes-256`.
LANES = 256
# The pattern after that of 1.0, which is the largest exponential.
BEYOND_ONE = 0x3F800001
NO_TOKEN = -1


def lanes_sum(terms_MV: np.ndarray) -> np.ndarray:
    """Each row's sum of non-negative terms: term v to lane v mod 256, lanes folded by halves."""
    rows, terms = terms_MV.shape
    padded = np.zeros((rows, -(-terms // LANES) * LANES), np.float32)
    padded[:, :terms] = terms_MV
    lanes_ML = np.zeros((rows, LANES), np.float32)
    for start in range(0, padded.shape[1], LANES):
        lanes_ML = lanes_ML + padded[:, start : start + LANES]
    while lanes_ML.shape[1] > 1:
        half = lanes_ML.shape[1] // 2
        lanes_ML = lanes_ML[:, :half] + lanes_ML[:, half:]
    return lanes_ML[:, 0]


def nucleus(e_MV: np.ndarray, top_p_M: np.ndarray) -> np.ndarray:
    """For each row the largest t for which the lanes sum of {e >= t} reaches top_p of the whole."""
    target_M = top_p_M * lanes_sum(e_MV)
    reached_M = np.zeros(len(e_MV), np.uint32)
    missed_M = np.full(len(e_MV), BEYOND_ONE, np.uint32)
    while (missed_M - reached_M > 1).any():
        middle_M = (reached_M + missed_M) // 2
        t_M = middle_M.view(np.float32)
        enough_M = lanes_sum(np.where(e_MV >= t_M[:, None], e_MV, np.float32(0))) >= target_M
        reached_M, missed_M = np.where(enough_M, middle_M, reached_M), np.where(enough_M, missed_M, middle_M)
    return reached_M.view(np.float32)


def gumbel(vocabulary: int, requests_M: np.ndarray, positions_M: np.ndarray, seed: int) -> np.ndarray:
    """-log(-log(u)) for every token: word v mod 4 of the counter (v / 4, position, request's low and high half)."""
    rows, blocks = len(requests_M), (vocabulary + 3) // 4
    request_M = requests_M.astype(np.uint64)
    halves = (
        positions_M.astype(np.uint32),
        request_M.astype(np.uint32),
        (request_M >> np.uint64(32)).astype(np.uint32),
    )
    block = np.tile(np.arange(blocks, dtype=np.uint32), rows)
    counter = np.stack([block, *(np.repeat(words_M, blocks) for words_M in halves)], axis=1)
    key = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32)
    drawn_MV = philox_blocks(counter, key).reshape(rows, -1)[:, :vocabulary]
    u_MV = (drawn_MV >> np.uint32(9)).astype(np.float32) * np.float32(2.0**-23) + np.float32(2.0**-24)
    return -evaluate("log", -evaluate("log", u_MV))


def kept(z_MV: np.ndarray, top_k_M: np.ndarray, top_p_M: np.ndarray) -> np.ndarray:
    """Which scores of each row may be drawn. The rows are finite but for -inf, and something is larger than that."""
    vocabulary = z_MV.shape[1]
    kept_MV = z_MV > -np.inf
    for row in np.flatnonzero((top_k_M > 0) & (top_k_M < vocabulary)):
        kept_MV[row] &= z_MV[row] >= np.sort(z_MV[row])[-top_k_M[row]]
    some = np.flatnonzero(top_p_M < 1)
    e_MV = np.where(kept_MV[some], evaluate("exp", z_MV[some] - z_MV[some].max(1, keepdims=True)), np.float32(0))
    kept_MV[some] &= e_MV >= nucleus(e_MV, top_p_M[some])[:, None]
    return kept_MV


@np.errstate(invalid="ignore", over="ignore", divide="ignore")
def forward(
    logits_MV: Tensor,
    requests_M: Tensor,
    positions_M: Tensor,
    temperature_M: Tensor,
    top_k_M: Tensor,
    top_p_M: Tensor,
    seeds_M: Tensor,
) -> Tensor:
    """One token a row."""
    x_MV = logits_MV.detach().float().cpu().numpy()
    who_M, where_M, heat_M, k_M, p_M, seed_M = (
        each.cpu().numpy() for each in (requests_M, positions_M, temperature_M, top_k_M, top_p_M, seeds_M)
    )
    greedy_M = heat_M == 0
    z_MV = np.where(greedy_M[:, None], x_MV, x_MV * (np.float32(1) / heat_M)[:, None])
    drawable_M = ~np.isnan(z_MV).any(1) & np.isfinite(z_MV.max(1, initial=-np.inf))
    tokens_M = np.where(drawable_M, z_MV.argmax(1), NO_TOKEN)
    drawn = np.flatnonzero(drawable_M & ~greedy_M)
    if len(drawn):
        score_MV = z_MV[drawn]
        for seed in np.unique(seed_M[drawn]):
            rows = seed_M[drawn] == seed
            score_MV[rows] += gumbel(z_MV.shape[1], who_M[drawn][rows], where_M[drawn][rows], int(seed))
        kept_MV = kept(z_MV[drawn], k_M[drawn], p_M[drawn])
        tokens_M[drawn] = np.where(kept_MV, score_MV, np.float32(-np.inf)).argmax(1)
    return torch.from_numpy(tokens_M.astype(np.int64)).to(logits_MV.device)
