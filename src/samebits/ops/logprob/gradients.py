"""Gradients of selected log-probabilities, a chunk of the vocabulary at a time: no more of the logits ever exists.

A chunk's dz is made by the operator's kernel from hidden, weight and the saved log-sum-exp; the products are matmul's.
Chunks start at multiples of a vocabulary block, where the chain over the vocabulary can be resumed: their size decides
memory and speed, never bits. Knows nothing of autograd and validation; the public function does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from samebits.ops.backends import kernel_module
from samebits.ops.logprob.reference import BLOCK
from samebits.ops.registering import call
from samebits.ops.unrounded import unrounded

# Memory and speed only: bytes of one chunk of dz.
SCRATCH_BYTES = 1 << 27
# Rows of dz start this many numbers apart, or a multiple: 16-bit ones can then be read 16 bytes at a time.
ROW_MULTIPLE = 16


kernel = partial(kernel_module, "samebits.ops.logprob", "selected_logprob")


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows with their tokens and log-sum-exp, as the forward pass saw them. At least one row."""

    hidden: Tensor
    weight: Tensor
    ids: Tensor
    lse: Tensor
    ignore_index: int
    backend: str

    def chunks(self, dlogprob_M: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Columns and their dz, ascending; the memory of one dz is that of the next."""
        rows, vocabulary = self.hidden.shape[0], self.weight.shape[0]
        blocks = max(SCRATCH_BYTES // (rows * self.hidden.element_size() * BLOCK), 1)
        width = min(blocks * BLOCK, -(-vocabulary // ROW_MULTIPLE) * ROW_MULTIPLE)
        scratch = self.hidden.new_empty(rows, width)
        hidden_MK, weight_VK, dlogprob_M = self.hidden.contiguous(), self.weight.contiguous(), dlogprob_M.contiguous()
        logit_gradient = kernel(self.backend, self.hidden.device).logit_gradient
        for first in range(0, vocabulary, width):
            columns = slice(first, min(first + width, vocabulary))
            dz_MC = scratch[:, : columns.stop - first]
            logit_gradient(
                dlogprob_M, hidden_MK, weight_VK[columns], self.ids, self.lse, self.ignore_index, first, dz_MC
            )
            yield columns, dz_MC

    def weighted_rows(self) -> Tensor:
        """hidden, with +0 in ignored rows: whatever stands there, a sum over rows must not meet it."""
        return self.hidden.masked_fill((self.ids == self.ignore_index)[:, None], 0.0)

    def gradients(
        self,
        dlogprob_M: Tensor,
        wants_hidden: bool,
        wants_weight: bool,
        *,
        upstream: Tensor | None = None,
        sum_VK: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Those of hidden and weight: each chain in float32, times `upstream` where given, then rounded.

        What is not wanted is empty. With `sum_VK` (float32, contiguous) weight's chain is resumed there instead."""
        if self.hidden.dtype == torch.float64:
            return self._gradients64(dlogprob_M if upstream is None else dlogprob_M * upstream)
        sum_MK = self.hidden.new_zeros(self.hidden.shape if wants_hidden else 0, dtype=torch.float32)
        dweight_VK, weighted_MK = self.weight.new_empty(self.weight.shape if wants_weight else 0), self.weighted_rows()
        for columns, dz_MC in self.chunks(dlogprob_M):
            if wants_hidden:
                torch.ops.samebits.gemm_accumulate_(sum_MK, dz_MC, self.weight[columns], self.backend)
            if sum_VK is not None:
                torch.ops.samebits.gemm_accumulate_(sum_VK[columns], dz_MC.T, weighted_MK, self.backend)
            elif wants_weight and upstream is not None:
                torch.mul(unrounded(dz_MC.T, weighted_MK, self.backend), upstream, out=dweight_VK[columns])
            elif wants_weight:
                dweight_VK[columns] = call("gemm", dz_MC.T, weighted_MK, None, self.backend)
        return (sum_MK if upstream is None else sum_MK * upstream).to(self.hidden.dtype), dweight_VK

    def _gradients64(self, dlogprob_M: Tensor) -> tuple[Tensor, Tensor]:
        dhidden_MK, dweight_VK = torch.zeros_like(self.hidden), torch.zeros_like(self.weight)
        for columns, dz_MC in self.chunks(dlogprob_M):
            dhidden_MK += dz_MC @ self.weight[columns]
            dweight_VK[columns] = dz_MC.T @ self.weighted_rows()
        return dhidden_MK, dweight_VK
