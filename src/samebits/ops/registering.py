"""How an operator becomes torch's: schema, implementation on every device, fake, gradient, in one call.

Knows no operator. `Library.define` and `impl` instead of `custom_op`: half the cost of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library: Any = torch.library.Library("samebits", "FRAGMENT")  # type: ignore[no-untyped-call]


def register(
    schema: str,
    *,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> None:
    """Make `torch.ops.samebits.<name>` from a schema like "name(Tensor x, str backend) -> Tensor"."""
    name = schema.split("(")[0]
    _library.define(schema)
    for device in ("CPU", "CUDA"):
        _library.impl(name, run, device)
    torch.library.register_fake(f"samebits::{name}", fake)
    if backward is not None:
        torch.library.register_autograd(f"samebits::{name}", backward, setup_context=setup_context)


def contiguous_like(x: Tensor) -> Tensor:
    """What a fake kernel returns for a contiguous result of x's shape and dtype, whatever x's own strides."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)
