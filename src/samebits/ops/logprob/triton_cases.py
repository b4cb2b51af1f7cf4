"""What is traced and compiled of selected log-probabilities by Triton: rows of tokens, and the logits' gradients."""

from __future__ import annotations

import torch

from samebits.contracts.traced import (
    VOCABULARY,
    Memory,
    Outputs,
    TracedKernels,
    by_rows,
    by_token,
    checked,
    over_rows,
    result,
    shared,
    tokens,
)
from samebits.ops.logprob import triton_kernel
from samebits.ops.logprob.check import launches


def _logprob(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (hidden,) = by_rows(memory, dtype, hidden=(m, 64))
    (weight,) = shared(memory, dtype, weight=(VOCABULARY, 64))
    value, lse = triton_kernel.forward(hidden, weight, tokens(m), -100)
    return {"logprob": by_token(value, m), "lse": result(lse)}


def _gradient(memory: Memory, dtype: torch.dtype, m: int) -> Outputs:
    (hidden,) = by_rows(memory, dtype, hidden=(m, 64))
    (weight,) = shared(memory, dtype, weight=(VOCABULARY, 64))
    g, lse = by_rows(memory, torch.float32, g=(m,), lse=(m,))
    dz = torch.zeros(m, VOCABULARY, dtype=dtype)
    triton_kernel.logit_gradient(g, hidden, weight, tokens(m), lse, -100, 0, dz)
    return {"dz": by_token(dz, m)}


KERNELS = TracedKernels(
    cases=(
        over_rows("log-probabilities of 304 tokens, K 64", _logprob, 2, checked(launches)),
        over_rows("gradients of 304 logits, K 64", _gradient, 1, checked(launches)),
    )
)
