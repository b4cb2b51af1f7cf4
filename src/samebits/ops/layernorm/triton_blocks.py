"""Blocks of a row that LayerNorm by Triton loads and adds up: STEPS of 256 columns, of which FULL surely exist.

A row that is kept is one such group of blocks, all of them full but the last; a longer one is read group by group, and
none of its blocks is known to be full."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.ops._triton.rows import block_of, load_rows, pointers_at
from samebits.ops.rmsnorm.triton_kept import block_at, load_shared, only_inside


@triton.jit
def load_blocks(x_ptr, rows, start, M, H, STEPS: tl.constexpr, FULL: tl.constexpr, ALIGNED: tl.constexpr):
    """STEPS blocks of 256 columns as they are stored; +0 outside. Nothing is stored between their loads."""
    blocks = tl.tuple(())
    for step in tl.static_range(STEPS):
        offsets, inside, _ = block_at(rows, start + step * 256, M, H, step < FULL, ALIGNED)
        blocks += (tl.load(pointers_at(x_ptr, offsets, ALIGNED), mask=inside, other=0.0),)
    return blocks


@triton.jit
def add_blocks(lanes, blocks, STEPS: tl.constexpr):
    for step in tl.static_range(STEPS):
        # Outside x is +0, and a lane that starts at +0 is never -0: the step changes nothing.
        lanes = lanes + blocks[step].to(tl.float32)
    return lanes


@triton.jit
def add_squares(lanes, blocks, mean, rows, start, M, H, STEPS: tl.constexpr, FULL: tl.constexpr, ALIGNED: tl.constexpr):
    for step in tl.static_range(STEPS):
        _, inside, _ = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
        left = blocks[step].to(tl.float32) - mean
        lanes = only_inside(tl.fma(left, left, lanes), lanes, inside, step < FULL)
    return lanes


@triton.jit
def results_of(
    weight_ptr,
    bias_ptr,
    blocks,
    mean,
    rstd,
    rows,
    start,
    M,
    H,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    FULL: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """round(fma((x - mean) * rstd, weight, bias)) in the dtype of x."""
    results = tl.tuple(())
    for step in tl.static_range(STEPS):
        _, inside, columns = block_at(rows, start + step * 256, M, H, step < FULL, ALIGNED)
        y = (blocks[step].to(tl.float32) - mean) * rstd
        if weight_ptr is not None:
            weight = load_shared(weight_ptr, columns, inside, ROWS, ALIGNED)
            if bias_ptr is not None:
                y = tl.fma(y, weight, load_shared(bias_ptr, columns, inside, ROWS, ALIGNED))
            else:
                y = y * weight
        else:
            if bias_ptr is not None:
                y = y + load_shared(bias_ptr, columns, inside, ROWS, ALIGNED)
        results += (y.to(blocks[step].dtype),)
    return results


@triton.jit
def load_terms(
    dy_ptr,
    x_ptr,
    weight_ptr,
    mean,
    rstd,
    rows,
    start,
    M,
    H,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    FULL: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """g = dy * weight and xhat = (x - mean) * rstd of STEPS blocks; outside, g is +0."""
    gradients, normalised = tl.tuple(()), tl.tuple(())
    for step in tl.static_range(STEPS):
        offsets, inside, columns = block_at(rows, start + step * 256, M, H, step < FULL, ALIGNED)
        g = load_rows(dy_ptr, offsets, inside, ALIGNED)
        if weight_ptr is not None:
            g = g * load_shared(weight_ptr, columns, inside, ROWS, ALIGNED)
        gradients += (g,)
        normalised += ((load_rows(x_ptr, offsets, inside, ALIGNED) - mean) * rstd,)
    return gradients, normalised


@triton.jit
def add_products(
    products, gradients, normalised, rows, start, M, H, STEPS: tl.constexpr, FULL: tl.constexpr, ALIGNED: tl.constexpr
):
    for step in tl.static_range(STEPS):
        _, inside, _ = block_of(rows, start + step * 256, M, H, 256, ALIGNED)
        # A missing term is skipped, so that a lane of -0, to which a product may round, stays one.
        added = tl.fma(gradients[step], normalised[step], products)
        products = only_inside(added, products, inside, step < FULL)
    return products


@triton.jit
def gradients_of(gradients, normalised, centre, minus_slope, rstd, ROWS: tl.constexpr, STEPS: tl.constexpr):
    """rstd * fma(xhat, -s, g - c)."""
    results = tl.tuple(())
    for step in tl.static_range(STEPS):
        slope = tl.broadcast_to(minus_slope, (ROWS, 256))
        results += (rstd * tl.fma(normalised[step], slope, gradients[step] - centre),)
    return results
