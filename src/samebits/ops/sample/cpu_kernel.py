"""Sampling on the CPU: hands pointers to the C++ kernel beside this file. Everything comes contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run


def forward(
    logits_MV: Tensor,
    requests_M: Tensor,
    positions_M: Tensor,
    temperature_M: Tensor,
    top_k_M: Tensor,
    top_p_M: Tensor,
    seeds_M: Tensor,
) -> Tensor:
    """One token a row."""
    tokens_M = torch.empty(logits_MV.shape[0], dtype=torch.int64)
    tensors = (logits_MV, requests_M, positions_M, temperature_M, top_k_M, top_p_M, seeds_M, tokens_M)
    run("sample", "iqqpppppppp", FORMATS[logits_MV.dtype], *logits_MV.shape, *map(pointer, tensors))
    return tokens_M
