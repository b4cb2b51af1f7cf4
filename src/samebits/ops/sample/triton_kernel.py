"""Sampling by Triton: one program draws one row's token in passes over its logits, and stores nothing but that.

Knows nothing of validation or empty tensors; the public function does. Columns and warps of a program decide speed
alone: counts and maxima are exact in any order, and sums of exponentials run in 256 lanes that are folded by halves."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.numerics.elementary.triton_generated import exp, log, philox
from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import run
from samebits.ops._triton.rows import RowLaunch, aligned, fold_by_halves

# M rows, V tokens of the vocabulary.

# Decides bits: lane l adds the terms l, l + 256, l + 512, ... Part of the order.
LANES: Final = 256

# A row is one program; columns are those whose loads are under way together.
LAUNCH: Final = RowLaunch(rows=1, columns=2048, warps=8)


@triton.jit
def scores_at(row_ptr, columns, V, scale, ALIGNED: tl.constexpr):
    """z = x * (1 / temperature); -inf where there is no token."""
    # A multiple of 8 in a form that the compiler can see.
    length = V // 8 * 8 if ALIGNED else V
    pointers = row_ptr + columns
    if ALIGNED:
        pointers = tl.multiple_of(pointers, 16)
    return tl.load(pointers, mask=columns < length, other=float("-inf")).to(tl.float32) * scale


@triton.jit
def of_key(key):
    """The float32 of a key in 0..2^32-1 (int64); keys are ordered as the floats are."""
    bits = tl.where(key >= 0x80000000, key - 0x80000000, 0xFFFFFFFF - key)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def kth_largest(row_ptr, V, scale, k, STEPS: tl.constexpr, ALIGNED: tl.constexpr):
    """The largest number that k scores reach: three candidates a pass leave a quarter of the keys."""
    reached = tl.cast(0x007FFFFF, tl.int64)  # the key of -inf
    missed = tl.cast(0xFF800000, tl.int64)  # and of +inf
    while missed - reached > 1:
        step = (missed - reached + 3) // 4
        count_1 = tl.zeros((256 * STEPS,), dtype=tl.int32)
        count_2 = tl.zeros((256 * STEPS,), dtype=tl.int32)
        count_3 = tl.zeros((256 * STEPS,), dtype=tl.int32)
        for start in range(0, V, 256 * STEPS):
            z = scores_at(row_ptr, start + tl.arange(0, 256 * STEPS), V, scale, ALIGNED)
            count_1 += (z >= of_key(reached + step)).to(tl.int32)
            count_2 += (z >= of_key(reached + 2 * step)).to(tl.int32)
            count_3 += (z >= of_key(reached + 3 * step)).to(tl.int32)
        true_1 = (tl.sum(count_1, 0) >= k).to(tl.int64)
        true_2 = (tl.sum(count_2, 0) >= k).to(tl.int64)
        true_3 = (tl.sum(count_3, 0) >= k).to(tl.int64)
        reached = reached + (true_1 + true_2 + true_3) * step
        missed = tl.minimum(reached + step, missed)
    return of_key(reached)


@triton.jit
def exponentials_at(row_ptr, columns, V, scale, least, maximum, ALIGNED: tl.constexpr):
    """exp(z - max) of the kept, +0 of all others."""
    z = scores_at(row_ptr, columns, V, scale, ALIGNED)
    return tl.where(z >= least, exp(z - maximum), 0.0)


@triton.jit
def folded(lanes):
    """256 lanes to one number."""
    return tl.max(fold_by_halves(tl.reshape(lanes, (1, 256)), 1), 0)


@triton.jit
def nucleus(row_ptr, V, scale, least, maximum, top_p, STEPS: tl.constexpr, ALIGNED: tl.constexpr):
    """The largest t for which the exponentials from t on sum to top_p of the whole; three candidates a pass."""
    lanes = tl.zeros((256,), dtype=tl.float32)
    for start in range(0, V, 256 * STEPS):
        for step in tl.static_range(STEPS):
            columns = start + step * 256 + tl.arange(0, 256)
            lanes = lanes + exponentials_at(row_ptr, columns, V, scale, least, maximum, ALIGNED)
    target = top_p * folded(lanes)
    reached = tl.cast(0, tl.int64)
    missed = tl.cast(0x3F800001, tl.int64)  # the pattern after that of 1.0, which is the largest exponential
    while missed - reached > 1:
        quarter = (missed - reached + 3) // 4
        t_1 = (reached + quarter).to(tl.uint32).to(tl.float32, bitcast=True)
        t_2 = (reached + 2 * quarter).to(tl.uint32).to(tl.float32, bitcast=True)
        t_3 = (reached + 3 * quarter).to(tl.uint32).to(tl.float32, bitcast=True)
        lanes_1 = tl.zeros((256,), dtype=tl.float32)
        lanes_2 = tl.zeros((256,), dtype=tl.float32)
        lanes_3 = tl.zeros((256,), dtype=tl.float32)
        for start in range(0, V, 256 * STEPS):
            for step in tl.static_range(STEPS):
                columns = start + step * 256 + tl.arange(0, 256)
                e = exponentials_at(row_ptr, columns, V, scale, least, maximum, ALIGNED)
                # A lane is never -0, so a term left out may be added as +0.
                lanes_1 = lanes_1 + tl.where(e >= t_1, e, 0.0)
                lanes_2 = lanes_2 + tl.where(e >= t_2, e, 0.0)
                lanes_3 = lanes_3 + tl.where(e >= t_3, e, 0.0)
        true_1 = (folded(lanes_1) >= target).to(tl.int64)
        true_2 = (folded(lanes_2) >= target).to(tl.int64)
        true_3 = (folded(lanes_3) >= target).to(tl.int64)
        reached = reached + (true_1 + true_2 + true_3) * quarter
        missed = tl.minimum(reached + quarter, missed)
    return reached.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def drawn_scores(z, columns, request, position, seed):
    """z + g, g = -log(-log(u)), u from word v mod 4 of the counter (v / 4, position, request low, request high)."""
    word_0, word_1, word_2, word_3 = philox(
        (columns // 4).to(tl.uint32),
        position.to(tl.uint32),
        request.to(tl.uint32),
        (request >> 32).to(tl.uint32),
        seed.to(tl.uint32),
        (seed >> 32).to(tl.uint32),
    )
    place = columns % 4
    word = tl.where(place == 0, word_0, tl.where(place == 1, word_1, tl.where(place == 2, word_2, word_3)))
    u = (word >> 9).to(tl.int32).to(tl.float32) * 1.1920928955078125e-07 + 5.9604644775390625e-08
    return z - log(0.0 - log(u))


@triton.jit(
    do_not_specialize=["V"],
    do_not_specialize_on_alignment=[
        "logits_ptr",
        "requests_ptr",
        "positions_ptr",
        "temperature_ptr",
        "top_k_ptr",
        "top_p_ptr",
        "seeds_ptr",
        "tokens_ptr",
    ],
)
def sample_rows(
    logits_ptr,
    requests_ptr,
    positions_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    seeds_ptr,
    tokens_ptr,
    V: tl.int32,
    STEPS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """tokens[m]: the first of the largest scores among the kept, or -1."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * (V // 8 * 8 if ALIGNED else V)
    temperature = tl.load(temperature_ptr + row)
    greedy = temperature == 0.0
    scale = tl.where(greedy, 1.0, tl.div_rn(tl.cast(1.0, tl.float32), temperature))
    best = tl.full((256 * STEPS,), float("-inf"), tl.float32)
    wrong = tl.zeros((256 * STEPS,), dtype=tl.int32)
    for start in range(0, V, 256 * STEPS):
        z = scores_at(row_ptr, start + tl.arange(0, 256 * STEPS), V, scale, ALIGNED)
        best = tl.maximum(best, z)
        wrong = wrong | (z != z).to(tl.int32)
    maximum = tl.max(best, 0)
    drawable = (tl.max(wrong, 0) == 0) & (maximum > float("-inf")) & (maximum < float("inf"))

    least = tl.cast(float("-inf"), tl.float32)
    top_k = tl.load(top_k_ptr + row)
    if drawable & (temperature > 0.0) & (top_k > 0) & (top_k < V):
        least = kth_largest(row_ptr, V, scale, top_k, STEPS, ALIGNED)
    floor = tl.cast(0.0, tl.float32)
    top_p = tl.load(top_p_ptr + row)
    if drawable & (temperature > 0.0) & (top_p < 1.0):
        floor = nucleus(row_ptr, V, scale, least, maximum, top_p, STEPS, ALIGNED)

    request = tl.load(requests_ptr + row)
    position = tl.load(positions_ptr + row)
    seed = tl.load(seeds_ptr + row)
    best = tl.full((256 * STEPS,), float("-inf"), tl.float32)
    token = tl.full((256 * STEPS,), 0x7FFFFFFF, tl.int32)
    for start in range(0, V, 256 * STEPS):
        columns = start + tl.arange(0, 256 * STEPS)
        score = scores_at(row_ptr, columns, V, scale, ALIGNED)
        if temperature > 0.0:
            kept = (score >= least) & (exp(score - maximum) >= floor)
            score = tl.where(kept, drawn_scores(score, columns, request, position, seed), float("-inf"))
        # Columns ascend: only a larger score takes the place of an earlier token.
        token = tl.where(score > best, columns, token)
        best = tl.maximum(score, best)
    first = tl.min(tl.where(best == tl.max(best, 0), token, 0x7FFFFFFF), 0)
    tl.store(tokens_ptr + row, tl.where(drawable, first, -1).to(tl.int64))


def forward(
    logits_MV: Tensor,
    requests_M: Tensor,
    positions_M: Tensor,
    temperature_M: Tensor,
    top_k_M: Tensor,
    top_p_M: Tensor,
    seeds_M: Tensor,
    *,
    launch: RowLaunch | None = None,
) -> Tensor:
    """One token a row."""
    launch = launch or forced_launch(RowLaunch) or LAUNCH
    m, vocabulary = logits_MV.shape
    tokens_M = torch.empty(m, dtype=torch.int64, device=logits_MV.device)
    tensors = (logits_MV, requests_M, positions_M, temperature_M, top_k_M, top_p_M, seeds_M, tokens_M)
    with on_device(logits_MV):
        run(
            sample_rows,
            m,
            (*tensors, vocabulary),
            warps=launch.warps,
            stages=launch.stages,
            STEPS=max(1, launch.columns // LANES),
            ALIGNED=aligned(logits_MV),
        )
    return tokens_M
