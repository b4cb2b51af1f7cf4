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


def lanes_sum(terms_V: np.ndarray) -> np.float32:
    """The sum of non-negative terms: term v to lane v mod 256, lanes folded by halves."""
    padded = np.zeros(-(-terms_V.size // LANES) * LANES, np.float32)
    padded[: terms_V.size] = terms_V
    lanes_L = np.zeros(LANES, np.float32)
    for block_L in padded.reshape(-1, LANES):
        lanes_L = lanes_L + block_L
    while lanes_L.size > 1:
        half = lanes_L.size // 2
        lanes_L = lanes_L[:half] + lanes_L[half:]
    return np.float32(lanes_L[0])


def nucleus(e_V: np.ndarray, top_p: np.float32) -> np.float32:
    """The largest t for which the lanes sum of {e >= t} reaches top_p of the whole."""
    target = top_p * lanes_sum(e_V)
    reached, missed = 0, BEYOND_ONE
    while missed - reached > 1:
        middle = (reached + missed) // 2
        t = np.array([middle], np.uint32).view(np.float32)[0]
        if lanes_sum(np.where(e_V >= t, e_V, np.float32(0))) >= target:
            reached = middle
        else:
            missed = middle
    return np.array([reached], np.uint32).view(np.float32)[0]  # type: ignore[no-any-return]


def gumbel(vocabulary: int, request: int, position: int, seed: int) -> np.ndarray:
    """-log(-log(u)) for every token: word v mod 4 of the counter (v / 4, position, request's low and high half)."""
    block = np.arange((vocabulary + 3) // 4, dtype=np.uint32)
    words = (position, request & 0xFFFFFFFF, (request >> 32) & 0xFFFFFFFF)
    counter = np.stack([block, *(np.full_like(block, word) for word in words)], axis=1)
    key = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32)
    drawn_V = philox_blocks(counter, key).reshape(-1)[:vocabulary]
    u_V = (drawn_V >> np.uint32(9)).astype(np.float32) * np.float32(2.0**-23) + np.float32(2.0**-24)
    return -evaluate("log", -evaluate("log", u_V))


def draw(
    x_V: np.ndarray, request: int, position: int, temperature: np.float32, top_k: int, top_p: np.float32, seed: int
) -> int:
    """The token of one row."""
    z_V = x_V if temperature == 0 else x_V * (np.float32(1) / temperature)
    if np.isnan(z_V).any() or not np.isfinite(z_V.max()):
        return NO_TOKEN
    if temperature == 0:
        return int(np.argmax(z_V))
    kept_V = z_V > -np.inf
    if 0 < top_k < z_V.size:
        kept_V &= z_V >= np.sort(z_V)[-top_k]
    if top_p < 1:
        e_V = np.where(kept_V, evaluate("exp", z_V - z_V.max()), np.float32(0))
        kept_V &= e_V >= nucleus(e_V, top_p)
    score_V = z_V + gumbel(z_V.size, request, position, seed)
    return int(np.argmax(np.where(kept_V, score_V, np.float32(-np.inf))))


@np.errstate(invalid="ignore", over="ignore")
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
    rows = zip(
        logits_MV.detach().float().cpu().numpy(),
        requests_M.tolist(),
        positions_M.tolist(),
        temperature_M.cpu().numpy(),
        top_k_M.tolist(),
        top_p_M.cpu().numpy(),
        seeds_M.tolist(),
        strict=True,
    )
    tokens = [draw(*row) for row in rows]
    return torch.tensor(tokens, dtype=torch.int64, device=logits_MV.device)
