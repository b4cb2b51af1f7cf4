"""Element by element on the CPU: kernels of the native library over contiguous tensors of one size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, run


class ElementKernels:
    """`<name>_forward` and `<name>_backward`: (format, options, elements, tensors read, tensors written)."""

    def __init__(self, name: str, tensors: int, options: int) -> None:
        self.name, self.tensors = name, tensors
        # Made once: a small call takes no longer than its kernel and its pointers.
        self._forward = f"{name}_forward", f"{'i' * (1 + options)}q{'p' * (tensors + 1)}"
        self._backward = f"{name}_backward", f"{'i' * (1 + options)}q{'p' * (2 * tensors + 1)}"

    def forward(self, *given: Any) -> Tensor:
        """The result for these tensors and options."""
        first = given[0]
        y = torch.empty_like(first)
        read = [each.data_ptr() for each in given[: self.tensors]]
        run(*self._forward, FORMATS[first.dtype], *given[self.tensors :], first.numel(), *read, y.data_ptr())
        return y

    def backward(self, dy: Tensor, *given: Any) -> Tensor | tuple[Tensor, ...]:
        """The gradient of each tensor where `dy` flows in."""
        found = tuple([torch.empty_like(dy) for _ in range(self.tensors)])
        addresses = [each.data_ptr() for each in (dy, *given[: self.tensors], *found)]
        run(*self._backward, FORMATS[dy.dtype], *given[self.tensors :], dy.numel(), *addresses)
        return found if self.tensors > 1 else found[0]
