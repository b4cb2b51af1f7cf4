"""The module of an operator that runs a backend, imported when first used: Triton is not there on every machine.

Knows no operator but the names it is given."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch

MODULES = {"cpu": "cpu_kernel", "triton": "triton_kernel", "reference": "reference"}


@cache
def kernel_module(package: str, operator: str, backend: str, device: torch.device) -> Any:
    """`cpu_kernel`, `triton_kernel` or `reference` of a package; one line where Triton cannot run here."""
    if backend == "triton":
        from samebits.ops._triton.device import require_cuda

        require_cuda(operator, device)
    return import_module(f"{package}.{MODULES[backend]}")
