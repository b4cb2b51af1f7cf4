"""SwiGLU: `swiglu(gate, up)`, gate * sigmoid(gate) * up, and its gradients.

An element's bits depend on its own gate and up alone. A gate of -inf gives NaN (infinity times zero), one of +inf gives
an infinity and a gradient of NaN; both stay in their element."""

from __future__ import annotations

from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_tensors, choose_backend
from samebits.ops.elementwise import register_elementwise
from samebits.ops.registering import call


@checked
def swiglu(gate: Tensor, up: Tensor, *, backend: str | None = None) -> Tensor:
    """(gate * sigmoid(gate)) * up, element by element; any shape, the same for both."""
    backend = choose_backend("swiglu", gate, backend)
    check_tensors("swiglu", backend, {"gate": gate, "up": up})
    if gate.shape != up.shape:
        raise ValueError(f"swiglu: up has shape {tuple(up.shape)}, gate has {tuple(gate.shape)}; they must agree")
    y: Tensor = call("swiglu", gate, up, backend)
    return y


register_elementwise(__name__, "gate", "up")
