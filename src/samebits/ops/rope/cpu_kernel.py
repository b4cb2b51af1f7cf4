"""Rotary position embedding on the CPU: hands pointers to the C++ kernel beside this file. Tensors come contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def rotate(
    x_MHD: Tensor, positions_M: Tensor, frequencies_P: Tensor, factor: float, interleaved: bool, opposite: bool
) -> Tensor:
    """Every pair turned by its token's position times its frequency, or back again."""
    y_MHD = torch.empty_like(x_MHD)
    run(
        "rope_rotate",
        "iqqqpppfiip",
        FORMATS[x_MHD.dtype],
        *x_MHD.shape,
        *map(pointer, (x_MHD, positions_M, frequencies_P)),
        factor,
        int(interleaved),
        int(opposite),
        pointer(y_MHD),
    )
    return y_MHD
