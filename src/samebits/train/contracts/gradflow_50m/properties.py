"""What the backward pass of 50 million weights must do: give every tensor the gradient that float64 computes."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.train.contracts.gradflow_50m import cut


def matches_float64(call: Call, tolerance: Tolerance) -> str:
    """Each tensor's gradient against float64, relative to the tensor's largest; none is 0 everywhere."""
    exact = cut(call.reference(*call.arguments.values()))
    for name, gradient in cut(call.output).items():
        if not bool((gradient != 0).any()):
            return f"the gradient of {name} is 0 everywhere"
        largest = exact[name].abs().amax()
        wrong = difference(gradient, exact[name], tolerance, allowed=largest, words=f"gradient of {name}")
        if wrong:
            return wrong
    return ""
