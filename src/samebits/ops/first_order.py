"""Operators without a gradient of their own raise when one is asked for, where torch takes it for zero and warns once.

So a gradient penalty through a norm, or a loss made of a gradient's norm, does not train without it. The operators are
those of this package, the gradients of operators among them; those that write into an argument have none in torch."""

from __future__ import annotations

from functools import partial
from typing import Any, Never

import torch

from samebits.ops import registering


def refuse() -> None:
    """After operators are registered: of all that have none by then."""
    for name in registering._runs:
        if not name.endswith("_") and not has_gradient(name):
            torch.library.register_autograd(f"samebits::{name}", partial(_refused, name))


def has_gradient(name: str) -> bool:
    """Whether torch was told what to do where one is asked for."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"samebits::{name}", "Autograd")


def _refused(name: str, _context: Any, *_upstream: Any) -> Never:
    raise NotImplementedError(
        f"samebits::{name}: has no gradient; allowed: gradients of the first order, of the second those of matmul,"
        " linear, lm_head and rope"
    )
