"""What an operator declares of its Triton kernels, found by its package: `triton_cases.py` beside its contract.

Only a tracing or a compiling process imports it, for it imports Triton."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Final

from samebits.contracts.traced import TracedKernels

MODULE: Final = "triton_cases"


def traced_kernels(package: str) -> TracedKernels:
    """The calls that an operator lists; one line where it lists none."""
    try:
        listed = find_spec(f"{package}.{MODULE}") is not None
    except ModuleNotFoundError:
        listed = False
    if not listed:
        raise RuntimeError(f"tracing: {package} has no {MODULE}.py; expected one that lists its calls as KERNELS")
    found: TracedKernels = import_module(f"{package}.{MODULE}").KERNELS
    return found
