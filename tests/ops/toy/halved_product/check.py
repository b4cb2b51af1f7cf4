"""How a checker drives the toy: exact values and bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from samebits.ops.halved_product.reference import halved_product64
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded
from samebits.ops.elementwise import element_spec
from samebits.ops.rounding import allowed_error

# Float64's own roundings in the exact values.
FLOAT64_STEPS = 2


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    a, b = arguments["a"], arguments["b"]
    exact = {"output": halved_product64(a, b), "a": halved_product64(dy, b), "b": halved_product64(dy, a)}
    return {
        name: Bounded(exact=value, allowed=allowed_error(value, value.abs(), 0.0, FLOAT64_STEPS, 2, dy.dtype))
        for name, value in exact.items()
    }


SPECS = {"halved_product": element_spec("halved_product", ("a", "b"), _exact)}
