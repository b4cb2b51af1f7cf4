"""Element by element on the CPU: kernels of the native library over contiguous tensors of one size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


@dataclass(frozen=True, slots=True)
class ElementKernels:
    """`<name>_forward` and `<name>_backward`: (format, options, elements, tensors read, tensors written)."""

    name: str
    gradients: int

    def forward(self, *given: Tensor | bool) -> Tensor:
        """The result for these tensors and options."""
        return run_elements(f"{self.name}_forward", given, 1)[0]

    def backward(self, *given: Tensor | bool) -> Tensor | tuple[Tensor, ...]:
        """The gradient of each tensor but the first, which flows in."""
        found = run_elements(f"{self.name}_backward", given, self.gradients)
        return tuple(found) if self.gradients > 1 else found[0]


def run_elements(kernel: str, given: tuple[Tensor | bool, ...], outputs: int) -> list[Tensor]:
    """One call of a kernel, with fresh outputs."""
    inputs = [each for each in given if isinstance(each, Tensor)]
    options = [int(each) for each in given if not isinstance(each, Tensor)]
    made = [torch.empty_like(inputs[0]) for _ in range(outputs)]
    addresses = [pointer(each) for each in (*inputs, *made)]
    signature = f"{'i' * (1 + len(options))}q{'p' * len(addresses)}"
    run(kernel, signature, FORMATS[inputs[0].dtype], *options, inputs[0].numel(), *addresses)
    return made
