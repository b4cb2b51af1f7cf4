"""The declared orders by name: as data for any length, and the error bound that follows from their height.

Knows no operator. A name is what a contract writes; the tree is what a measurement must reveal."""

from __future__ import annotations

from samebits.numerics.order import Fused, Nearest, Order, chain, lanes

UNIT_ROUNDOFF = 2.0**-24
# One Hopper node: 17 terms cut at 25 fraction bits, and the result cut to 24 bits (see docs/orders.md).
HOPPER_NODE_ERROR = 17 * 2.0**-25 + 2.0**-23

LANES = 256


def declared_order(name: str, terms: int) -> Order:
    """The order a contract calls `name`, for a sum of `terms` terms."""
    if name == "chain-1":
        return chain(terms, 1, Nearest())
    if name == "chain-16":
        return chain(terms, 16, Fused())
    if name == "lanes-256":
        return lanes(terms, LANES)
    raise ValueError(f"order {name!r} is not declared; known: {', '.join(ORDERS)}")


def sum_error(name: str, terms: int) -> float:
    """|sum - exact| <= sum_error * (sum of magnitudes), for any finite terms that neither overflow nor underflow."""
    if name == "chain-16":
        return _compound(-(-terms // 16), HOPPER_NODE_ERROR)
    depth = {"chain-1": terms, "lanes-256": -(-terms // LANES) + LANES.bit_length() - 1}
    if name not in depth:
        raise ValueError(f"order {name!r} is not declared; known: {', '.join(ORDERS)}")
    return _compound(depth[name], UNIT_ROUNDOFF)


def _compound(steps: int, each: float) -> float:
    """`steps` relative errors of at most `each`, one after the other."""
    if steps * each >= 0.5:
        raise ValueError(f"no bound for {steps} steps of {each}: together they must stay under 0.5")
    return steps * each / (1 - steps * each)


ORDERS = ("chain-1", "chain-16", "lanes-256")
