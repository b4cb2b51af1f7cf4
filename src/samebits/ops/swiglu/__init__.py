"""SwiGLU: `swiglu(gate, up)`, gate * sigmoid(gate) * up, and its gradients.

An element's bits depend on its own gate and up alone. A gate of -inf gives NaN (infinity times zero), one of +inf gives
an infinity and a gradient of NaN; both stay in their element."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_tensors, choose_backend
from samebits.ops.backends import kernel_module
from samebits.ops.cuts import by_element
from samebits.ops.registering import call, contiguous_like, register


@checked
def swiglu(gate: Tensor, up: Tensor, *, backend: str | None = None) -> Tensor:
    """(gate * sigmoid(gate)) * up, element by element; any shape, the same for both."""
    backend = choose_backend("swiglu", gate, backend)
    check_tensors("swiglu", backend, {"gate": gate, "up": up})
    if gate.shape != up.shape:
        raise ValueError(f"swiglu: up has shape {tuple(up.shape)}, gate has {tuple(gate.shape)}; they must agree")
    y: Tensor = call("swiglu", gate, up, backend)
    return y


_kernel = partial(kernel_module, __name__, "swiglu")


def _swiglu(gate: Tensor, up: Tensor, backend: str) -> Tensor:
    if gate.numel() == 0:
        return contiguous_like(gate)
    y: Tensor = _kernel(backend, gate.device).forward(gate.contiguous(), up.contiguous())
    return y


def _swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    if gate.numel() == 0:
        return contiguous_like(gate), contiguous_like(up)
    dgate, dup = _kernel(backend, gate.device).backward(dy.contiguous(), gate.contiguous(), up.contiguous())
    return dgate, dup


def _swiglu_fake(gate: Tensor, up: Tensor, backend: str) -> Tensor:
    return contiguous_like(gate)


def _swiglu_backward_fake(dy: Tensor, gate: Tensor, up: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    return contiguous_like(gate), contiguous_like(up)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate, up, ctx.backend = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    dgate, dup = call("swiglu_backward", dy, *ctx.saved_tensors, ctx.backend)
    return dgate, dup, None


register(
    "swiglu(Tensor gate, Tensor up, str backend) -> Tensor",
    run=_swiglu,
    fake=_swiglu_fake,
    setup_context=_setup_context,
    backward=_backward,
    cuts=by_element(1, "gate", "up"),
)
register(
    "swiglu_backward(Tensor dy, Tensor gate, Tensor up, str backend) -> (Tensor, Tensor)",
    run=_swiglu_backward,
    fake=_swiglu_backward_fake,
    cuts=by_element(2, "dy", "gate", "up"),
)
