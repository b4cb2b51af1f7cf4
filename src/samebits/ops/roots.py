"""The square root of a tensor as IEEE 754 defines it, on every device: torch's own is another one on some processors.

On x86 torch takes float32 roots in a vector library that is not correctly rounded. Knows no operator."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.ops._cpu import run


def square_root(x: Tensor, backend: str | None = None) -> Tensor:
    """Element by element, float32 or float64, rounded once. The backend is that of x's device, or "reference"."""
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"square_root: x has dtype {str(x.dtype).removeprefix('torch.')}; allowed: float32, float64")
    if x.dtype == torch.float64 or backend == "reference":
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(np.asarray(np.sqrt(x.detach().cpu().numpy()))).to(x.device)
    given = x.detach().contiguous()
    if x.device.type == "cpu" or not x.numel():
        root = torch.empty_like(given)
        run("square_root", "ppq", given.data_ptr(), root.data_ptr(), given.numel())
        return root
    from samebits.ops._triton.roots import square_root as by_triton

    return by_triton(given)
