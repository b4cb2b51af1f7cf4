"""Whether this machine can run the Triton backend, said in one line when it cannot.

Knows no operator but the name it is given for the message."""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

# wgmma and the tensor memory accelerator; the order of the 16-bit chains was measured on this generation alone.
NEEDED_CAPABILITY = (9, 0)


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """The tensor's device made current; nothing to do where it is already."""
    return nullcontext() if tensor.device.index == torch.cuda.current_device() else torch.cuda.device(tensor.device)


@cache
def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def missing(device: torch.device | None = None) -> str | None:
    """What the Triton backend lacks here, or None when it can run (on `device`, or on the current one)."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton and it is not installed"
    if not torch.cuda.is_available():
        return "a CUDA GPU and none is visible"
    capability = torch.cuda.get_device_capability(device)
    if capability != NEEDED_CAPABILITY:
        needed, found = (".".join(map(str, each)) for each in (NEEDED_CAPABILITY, capability))
        return f"compute capability {needed} and this GPU has {found}"
    return None


def require_cuda(operator: str, device: torch.device | None = None) -> None:
    """Raise RuntimeError with one line when `operator` cannot run by Triton here."""
    lack = missing(device)
    if lack is not None:
        raise RuntimeError(f"{operator}: backend='triton' needs {lack}; usable here: 'cpu', 'reference'")
