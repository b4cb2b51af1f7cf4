"""GELU: `gelu(x, approximate)`, by the error function or by its tanh approximation, and its gradient.

An element's bits depend on that element alone. -inf gives NaN (infinity times zero) and +inf gives +inf, both with a
gradient of NaN; with "tanh" the gradient is NaN, too, where x*x leaves float32 (|x| above 1.8e19)."""

from __future__ import annotations

from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_tensors, choose_backend
from samebits.ops.elementwise import register_elementwise
from samebits.ops.registering import call

APPROXIMATIONS = ("none", "tanh")


@checked
def gelu(x: Tensor, approximate: str = "none", *, backend: str | None = None) -> Tensor:
    """x/2 (1 + erf(x / sqrt 2)), or with "tanh": x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); any shape."""
    backend = choose_backend("gelu", x, backend)
    check_tensors("gelu", backend, {"x": x})
    if approximate not in APPROXIMATIONS:
        raise ValueError(f"gelu: approximate is {approximate!r}; allowed: {', '.join(APPROXIMATIONS)}")
    y: Tensor = call("gelu", x, approximate == "tanh", backend)
    return y


register_elementwise(__name__, "x", options=("bool by_tanh",))
