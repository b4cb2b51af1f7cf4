"""simulate: equals plain Python loops and exact fractions, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from samebits.numerics.adder import HOPPER, OPERANDS, AdderModel
from samebits.numerics.bits import compare, round_to, same_bits
from samebits.numerics.fma import fma32
from samebits.numerics.order import Cast, Fused, Node, Order, balanced, chain, compose, lanes
from samebits.numerics.recipes import make
from samebits.numerics.simulate import fused_node, simulate


def test_a_chain_is_a_loop_of_additions() -> None:
    values = make("normal", (3, 5, 40), 1)
    total = np.zeros((3, 5), np.float32)
    for k in range(40):
        total = total + values[..., k]
    assert same_bits(simulate(chain(40), values), total)
    assert not same_bits(simulate(balanced(40), values), total)


def test_a_chain_of_products_is_a_loop_of_fma_from_plus_zero() -> None:
    """Signed zeros included: the sum starts from +0."""
    a, b = make("zeros_signed", (200, 6), 1), make("zeros_signed", (200, 6), 2)
    total = np.zeros(200, np.float32)
    for k in range(6):
        total = fma32(a[:, k], b[:, k], total)
    assert same_bits(simulate(chain(6), (a, b)), total)


def test_exact_and_rounded_products_differ() -> None:
    a, b = make("normal", (100, 16), 1), make("normal", (100, 16), 2)
    rounded = np.zeros(100, np.float32)
    for k in range(16):
        rounded = rounded + a[:, k] * b[:, k]
    assert same_bits(simulate(chain(16), (a, b), products="rounded"), rounded)
    assert not same_bits(simulate(chain(16), (a, b)), rounded)
    with pytest.raises(ValueError, match="products='maybe' is unknown; allowed: exact, rounded"):
        simulate(chain(16), (a, b), products="maybe")


def test_lanes_are_a_row_of_accumulators_folded_by_halves() -> None:
    x = make("normal", (7, 1000), 3)
    accumulators = np.zeros((7, 256), np.float32)
    for start in range(0, 1000, 256):
        part = x[:, start : start + 256]
        accumulators[:, : part.shape[1]] = fma32(part, part, accumulators[:, : part.shape[1]])
    half = 128
    while half:
        accumulators[:, :half] += accumulators[:, half : 2 * half]
        half //= 2
    assert same_bits(simulate(lanes(1000, 256), (x, x)), accumulators[:, 0])


def test_casts_round_a_partial() -> None:
    values = make("normal", (50, 4), 2)
    order = compose(chain(2), [Node(Cast("bfloat16"), (chain(2),)), chain(1)])
    first = round_to(values[:, 0] + values[:, 1], "bfloat16")
    assert same_bits(simulate(order, values), first + values[:, 0])


def test_random_orders_match_the_slow_model(random_order: Callable[..., Order], slow_sum: Callable[..., float]) -> None:
    for seed in range(40):
        order = random_order(4 + seed % 20, seed)
        for recipe in ("normal", "wide", "cancelling"):
            values = make(recipe, (5, 4 + seed % 20), seed)
            slow = np.array([slow_sum(order, row) for row in values], np.float32)
            assert compare(simulate(order, values), slow) is None, (seed, recipe)


@pytest.mark.parametrize("operand", ["bfloat16", "float16"])
@pytest.mark.parametrize("recipe", ["normal", "wide", "cancelling", "subnormal"])
def test_fused_nodes_match_exact_fractions(operand: str, recipe: str, slow_fused: Callable[..., float]) -> None:
    """An accumulator and 16 products, aligned, cut at 25 bits, summed, cut to 24."""
    a, b = make(recipe, (150, 16), 1, operand), make(recipe, (150, 16), 2, operand)
    c = make(recipe, (150,), 3)
    model = replace(HOPPER, operand=operand)
    with np.errstate(all="ignore"):
        fused = fused_node([c, *((a[:, k], b[:, k]) for k in range(16))], model)
    lowest = OPERANDS[operand].lowest_exponent
    slow = [
        slow_fused([float(c[i]), *zip(a[i].tolist(), b[i].tolist(), strict=True)], 25, 24, lowest) for i in range(150)
    ]
    assert compare(fused, np.array(slow, np.float32)) is None


@pytest.mark.parametrize("fault", [{"fraction_bits": 24}, {"fraction_bits": 26}, {"keep_bits": 23}])
def test_another_adder_is_noticed(fault: dict[str, int]) -> None:
    a, b = make("normal", (200, 64), 1, "bfloat16"), make("normal", (200, 64), 2, "bfloat16")
    planted = replace(HOPPER, **fault)
    assert not same_bits(simulate(HOPPER.order(64), (a, b)), simulate(planted.order(64), (a, b)))


def test_the_exponent_of_a_product_is_not_renormalised() -> None:
    """1.5*1.5 - 1.5*1.5 + 2^-12 * 2^-13 in one node is 2^-25; 2.25 taken as 1.125 * 2^1 would cut it off."""
    a, b = np.float32([[1.5, -1.5, 2.0**-12]]), np.float32([[1.5, 1.5, 2.0**-13]])
    assert simulate(chain(3, 16), (a, b)).tolist() == [2.0**-25]
    assert simulate(chain(3, 16), a * b).tolist() == [0.0]  # planted fault: products as ordinary, normalised numbers


def test_what_is_not_finite_follows_ieee() -> None:
    inf, nan = np.inf, np.nan
    a = np.float32([[1, 1], [inf, 1], [inf, 1], [-inf, inf], [inf, 0], [nan, 1], [0.0, -0.0]])
    b = np.float32([[1, 1], [1, 1], [-1, 1], [1, 1], [0, 1], [1, 1], [-1, 1]])
    expected = np.float32([2, inf, -inf, nan, nan, nan, 0.0])
    assert same_bits(simulate(chain(2, 16), (a, b)), expected)
    assert same_bits(fused_node([np.float32([inf, -inf]), np.float32([1, inf])], HOPPER), np.float32([inf, nan]))


def test_corners_are_choices_of_the_model() -> None:
    """Each open question changes some result, so a measurement can settle it."""
    huge = np.float32([[3e38, 3e38]])
    order = chain(2, 2)
    assert simulate(order, huge).tolist() == [np.inf]
    largest = float(np.finfo(np.float32).max)
    assert simulate(order, huge, model=AdderModel(overflow_is_infinite=False)).tolist() == [largest]

    tiny = np.float32([[1.5, 1.5]]), np.float32([[2.0**-149, 2.0**-149]])  # 1.5 * 2^-149 twice: 3 * 2^-149
    assert simulate(order, tiny).tolist() == [3 * 2.0**-149]
    coarse = AdderModel(least_exponent=-126, fraction_bits=23)
    assert simulate(chain(2, 2, Fused(23, 24)), tiny, model=coarse).tolist() == [2 * 2.0**-149]

    zero_beside = np.float32([[0.0, 2.0**-60]]), np.float32([[2.0**127, 1.0]])
    assert simulate(order, zero_beside).tolist() == [2.0**-60]
    assert simulate(order, zero_beside, model=AdderModel(zeros_align=True)).tolist() == [0.0]

    # 2^-6 - 2^-13; taken as subnormal, the operands put the largest exponent 7 higher, and the second term is cut off.
    subnormal = np.float32([[2.0**-133, 2.0**-133]]), np.float32([[2.0**127, -(2.0**120)]])
    short = chain(2, 2, Fused(12, 24))
    assert simulate(short, subnormal).tolist() == [2.0**-6]
    normalised = AdderModel(normalise_subnormals=True)
    assert simulate(short, subnormal, model=normalised).tolist() == [2.0**-6 - 2.0**-13]
