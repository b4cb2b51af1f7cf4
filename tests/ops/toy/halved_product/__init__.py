"""A toy operator: `halved_product(a, b)`, (a * 0.5) * b, and its gradients. One folder is all there is of it."""

from __future__ import annotations

from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_tensors, choose_backend
from samebits.ops.elementwise import register_elementwise
from samebits.ops.registering import call


@checked
def halved_product(a: Tensor, b: Tensor, *, backend: str | None = None) -> Tensor:
    """(a * 0.5) * b, element by element; any shape, the same for both."""
    backend = choose_backend("halved_product", a, backend)
    check_tensors("halved_product", backend, {"a": a, "b": b})
    if a.shape != b.shape:
        raise ValueError(f"halved_product: b has shape {tuple(b.shape)}, a has {tuple(a.shape)}; they must agree")
    y: Tensor = call("halved_product", a, b, backend)
    return y


register_elementwise(__name__, "a", "b")
