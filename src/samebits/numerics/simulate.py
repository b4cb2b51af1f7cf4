"""Any order carried out on the CPU, bit for bit, over a batch of inputs.

Nearest additions are float32 additions; fused additions are integers. Knows no kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from samebits.numerics.adder import HOPPER, OPERANDS, AdderModel
from samebits.numerics.bits import round_to
from samebits.numerics.fma import fma32
from samebits.numerics.order import Cast, Fused, Leaf, Node, Order, nodes

Values: TypeAlias = np.ndarray | tuple[np.ndarray, np.ndarray]
_Part: TypeAlias = np.ndarray | tuple[np.ndarray, np.ndarray]

FLOAT32_LOWEST_EXPONENT: Final = -126
NO_EXPONENT: Final = -2000  # of a zero: below every exponent there is
NAN: Final = np.array(0x7FFFFFFF, np.uint32).view(np.float32)


def simulate(order: Order, values: Values, *, products: str = "exact", model: AdderModel = HOPPER) -> np.ndarray:
    """The float32 sum over the last axis of `values` in the given order.

    `values` is one float32 array [..., n], or a pair whose products are summed. Products that are "exact" join a
    partial sum by one FMA and enter a fused addition unrounded; one that starts a sum is rounded as if added to +0.
    Products that are "rounded" become float32 first. `model` settles what the order leaves open in fused additions."""
    if products not in ("exact", "rounded"):
        raise ValueError(f"simulate: products={products!r} is unknown; allowed: exact, rounded")
    leaf_arrays: Values
    if isinstance(values, tuple):
        a, b = np.broadcast_arrays(*(np.asarray(side, np.float32) for side in values))
        with np.errstate(all="ignore"):
            leaf_arrays = (a, b) if products == "exact" else a * b
    else:
        leaf_arrays = np.asarray(values, np.float32)
    done: list[_Part] = []
    for part in nodes(order):
        if isinstance(part, Leaf):
            done.append(_leaf(leaf_arrays, part.index))
        else:
            kids = done[-len(part.kids) :]
            del done[-len(part.kids) :]
            done.append(_node(part, kids, model))
    return _settled(done[0])


def _leaf(values: Values, index: int) -> _Part:
    return (values[0][..., index], values[1][..., index]) if isinstance(values, tuple) else values[..., index]


def _settled(part: _Part) -> np.ndarray:
    """A product on its own, rounded as the first addition to +0; anything else as it is."""
    return fma32(part[0], part[1], np.zeros((), np.float32)) if isinstance(part, tuple) else part


def _node(node: Node, kids: list[_Part], model: AdderModel) -> np.ndarray:
    if isinstance(node.kind, Cast):
        return round_to(_settled(kids[0]), node.kind.format)
    if isinstance(node.kind, Fused):
        kind = node.kind
        return fused_node(kids, replace(model, fraction_bits=kind.fraction_bits, keep_bits=kind.keep_bits))
    left, right = kids
    if isinstance(left, tuple) and not isinstance(right, tuple):
        left, right = right, left
    if isinstance(right, tuple):
        return fma32(right[0], right[1], _settled(left))
    with np.errstate(all="ignore"):
        return np.asarray(left + right, np.float32)


def fused_node(terms: list[_Part], model: AdderModel) -> np.ndarray:
    """Terms (float32 values, or pairs to be multiplied) aligned to the largest exponent, cut, summed, cut again."""
    F = model.fraction_bits
    decoded = [_product(*term, model) if isinstance(term, tuple) else _value(term, model) for term in terms]
    largest = np.maximum.reduce(np.broadcast_arrays(*(exponent for _, _, exponent, _ in decoded)))
    # A unit always has an accumulator: where no partial sum takes part it is a zero.
    accumulator = FLOAT32_LOWEST_EXPONENT if model.zeros_align else NO_EXPONENT
    largest = np.maximum(largest, max(model.least_exponent, accumulator))
    total = np.zeros(largest.shape, np.int64)
    for signed, fraction, exponent, _ in decoded:
        total += _towards_zero(signed << max(F - fraction, 0), max(fraction - F, 0) + (largest - exponent))
    # All zeros: the exponent is meaningless and the sum +0.
    unit = np.where(total == 0, 0, largest - F)
    drop = np.maximum(np.maximum(_bit_length(total) - model.keep_bits, -149 - unit), 0)
    kept = _towards_zero(total, drop)
    with np.errstate(over="ignore", under="ignore"):
        finite = np.ldexp(kept.astype(np.float64), unit + drop).astype(np.float32)
    if not model.overflow_is_infinite:
        finite = np.clip(finite, -np.finfo(np.float32).max, np.finfo(np.float32).max)
    # Where a term is not finite, IEEE addition of those terms alone decides.
    with np.errstate(invalid="ignore"):
        special = np.asarray(sum(special for *_, special in decoded), np.float32)
    return np.where(np.isnan(special), NAN, np.where(special == 0, finite, special))


# (signed significand, its fraction bits, exponent, the value itself where it is not finite and else 0)
_Decoded: TypeAlias = tuple[np.ndarray, int, np.ndarray, np.ndarray]


def _value(value: np.ndarray, model: AdderModel) -> _Decoded:
    """A float32 partial sum: subnormals keep the lowest exponent and stay unnormalised."""
    significand, exponent = _decode(value, FLOAT32_LOWEST_EXPONENT)
    if not model.zeros_align:
        exponent = np.where(significand == 0, NO_EXPONENT, exponent)
    return significand, 23, exponent, np.where(np.isfinite(value), np.float32(0), value)


def _product(a: np.ndarray, b: np.ndarray, model: AdderModel) -> _Decoded:
    """The exponent is the sum of the operands' exponents: significands in [1, 4) are not renormalised."""
    lowest = OPERANDS[model.operand].lowest_exponent
    if model.operand == "tfloat32":
        a, b = _cut_to_tfloat32(a), _cut_to_tfloat32(b)
    a_significand, a_exponent = _decode(a, lowest, model.normalise_subnormals)
    b_significand, b_exponent = _decode(b, lowest, model.normalise_subnormals)
    exponent = a_exponent + b_exponent
    significand = a_significand * b_significand
    if not model.zeros_align:
        exponent = np.where(significand == 0, NO_EXPONENT, exponent)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        special = np.where(np.isfinite(a) & np.isfinite(b), np.float32(0), a * b)
    return significand, 46, exponent, special


def _cut_to_tfloat32(values: np.ndarray) -> np.ndarray:
    """The last 13 bits cut off; an infinity or NaN keeps what it is."""
    cut = np.asarray(np.ascontiguousarray(values).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), cut.reshape(values.shape), values)


def _decode(values: np.ndarray, lowest_exponent: int, normalise: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Signed significand with 23 fraction bits, and exponent; what is not finite decodes as zero."""
    finite = np.where(np.isfinite(values), values, np.float32(0)).astype(np.float64)
    # frexp's significand lies in [0.5, 1), ours in [1, 2). A zero has the lowest exponent.
    exponent = np.where(finite == 0, lowest_exponent, np.frexp(finite)[1] - 1).astype(np.int64)
    if not normalise:
        exponent = np.maximum(exponent, lowest_exponent)
    return np.ldexp(finite, 23 - exponent).astype(np.int64), exponent


def _towards_zero(signed: np.ndarray, right: np.ndarray) -> np.ndarray:
    magnitude = np.abs(signed) >> np.minimum(right, 63)
    cut: np.ndarray = np.where(signed < 0, -magnitude, magnitude)
    return cut


def _bit_length(signed: np.ndarray) -> np.ndarray:
    # Below 2^53, so float64 holds it exactly and frexp reads its length.
    length: np.ndarray = np.frexp(np.abs(signed).astype(np.float64))[1].astype(np.int64)
    return length
