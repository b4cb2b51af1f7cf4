"""Loss and gradients in one pass over chunks of rows, on the CPU: three products instead of four.

A chunk's logits stand in scratch memory: they give the loss, turn into dz where they stand, and feed both gradients.
The weight's chain over rows is resumed from chunk to chunk, so the number of rows in a chunk decides memory and speed,
never bits: they are those of `logprob`'s gradients, which make dz again by columns. Knows neither autograd nor bad
input."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.logprob import cpu_kernel
from samebits.ops.unrounded import unrounded

# Memory and speed only: logits that exist at one time.
SCRATCH_NUMBERS = 1 << 25


def loss_and_sums(
    hidden_MK: Tensor,
    weight_VK: Tensor,
    targets_M: Tensor,
    ignore_index: int,
    g_M: Tensor,
    wants_hidden: bool,
    wants_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss of every row, float32 sum for hidden, float32 sum for weight); what is not wanted is empty.

    g is what flows into a row's log-probability."""
    rows, vocabulary = hidden_MK.shape[0], weight_VK.shape[0]
    height = -(-rows // -(-rows * vocabulary // SCRATCH_NUMBERS))
    logits, logprob_M = torch.empty(height, vocabulary, dtype=torch.float32), torch.empty(rows, dtype=torch.float32)
    dhidden_MK = torch.zeros(hidden_MK.shape if wants_hidden else 0, dtype=torch.float32)
    dweight_VK = torch.empty(0, dtype=torch.float32)
    weighted_MK = hidden_MK.masked_fill((targets_M == ignore_index)[:, None], 0.0)
    for first in range(0, rows, height):
        some = slice(first, min(first + height, rows))
        logits_RV, ids_R = logits[: some.stop - first], targets_M[some]
        logprob_M[some], lse_R = cpu_kernel.forward(hidden_MK[some], weight_VK, ids_R, ignore_index, logits_RV)
        dz_RV = cpu_kernel.logit_gradient_in_place(g_M[some], logits_RV, ids_R, lse_R, ignore_index, hidden_MK.dtype)
        if wants_hidden:
            torch.ops.samebits.gemm_accumulate_(dhidden_MK[some], dz_RV, weight_VK, "cpu")
        if wants_weight and first == 0:
            dweight_VK = unrounded(dz_RV.T, weighted_MK[some], "cpu")
        elif wants_weight:
            torch.ops.samebits.gemm_accumulate_(dweight_VK, dz_RV.T, weighted_MK[some], "cpu")
    return 0.0 - logprob_M, dhidden_MK, dweight_VK
