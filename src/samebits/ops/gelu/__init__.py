"""GELU: `gelu(x, approximate)`, by the error function or by its tanh approximation, and its
gradient.

An element's bits depend on that element alone. -inf gives NaN (infinity times zero) and +inf gives +inf, both with a
gradient of NaN; with "tanh" the gradient is NaN, too, where x*x leaves float32 (|x| above 1.8e19)."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_tensors, choose_backend
from samebits.ops.backends import kernel_module
from samebits.ops.cuts import by_element
from samebits.ops.registering import call, contiguous_like, register

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


_kernel = partial(kernel_module, __name__, "gelu")


def _gelu(x: Tensor, by_tanh: bool, backend: str) -> Tensor:
    if x.numel() == 0:
        return contiguous_like(x)
    y: Tensor = _kernel(backend, x.device).forward(x.contiguous(), by_tanh)
    return y


def _gelu_backward(dy: Tensor, x: Tensor, by_tanh: bool, backend: str) -> Tensor:
    if x.numel() == 0:
        return contiguous_like(x)
    dx: Tensor = _kernel(backend, x.device).backward(dy.contiguous(), x.contiguous(), by_tanh)
    return dx


def _gelu_fake(x: Tensor, by_tanh: bool, backend: str) -> Tensor:
    return contiguous_like(x)


def _gelu_backward_fake(dy: Tensor, x: Tensor, by_tanh: bool, backend: str) -> Tensor:
    return contiguous_like(x)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.by_tanh, ctx.backend = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = ctx.saved_tensors
    return call("gelu_backward", dy, x, ctx.by_tanh, ctx.backend), None, None


register(
    "gelu(Tensor x, bool by_tanh, str backend) -> Tensor",
    run=_gelu,
    fake=_gelu_fake,
    setup_context=_setup_context,
    backward=_backward,
    cuts=by_element(1, "x"),
)
register(
    "gelu_backward(Tensor dy, Tensor x, bool by_tanh, str backend) -> Tensor",
    run=_gelu_backward,
    fake=_gelu_backward_fake,
    cuts=by_element(1, "dy", "x"),
)
