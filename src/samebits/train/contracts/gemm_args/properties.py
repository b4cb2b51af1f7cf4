"""What a kernel must do with the sizes it is told: write inside its buffers, and the right product."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference


def zones_are_intact(call: Call, tolerance: Tolerance) -> str:
    """No sentinel beside any buffer is gone."""
    gone = int(call.output[:, -1].amax())
    return f"{gone} sentinels beside the buffers were overwritten; allowed: none" if gone else ""


def product_is_of_these_sizes(call: Call, tolerance: Tolerance, *, depth_axis: int) -> str:
    """The product against float64, within the bound of a chain over its depth."""
    left, right = (value.abs() for value in call.arguments.values())
    depth = left.shape[depth_axis]
    magnitude = call.reference(left, right)[:, :-1]
    allowed = call.sum_error(depth) * magnitude + depth * 2.0**-126
    expected = call.reference(*call.arguments.values())[:, :-1]
    return difference(call.output[:, :-1], expected, tolerance, allowed=allowed, words="product")
