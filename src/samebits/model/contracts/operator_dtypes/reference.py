"""The dtypes that operators declare: what goes in, and what comes out. Shares nothing with the checks of operators."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16)
WHOLE: Final = (torch.int64, torch.int32)
# Sums, moments and the gradients of an optimizer stay float32, whatever the weights are.
ALWAYS_FLOAT32: Final = frozenset({"accumulator", "grad", "exp_avg", "exp_avg_sq", "master"})
# Logits of an unrounded product come in float32, and nothing else may stand for them.
FLOAT32_ARGUMENTS: Final = frozenset({"logprob_of_logits"})
# Results have the dtype of the arguments, but for these.
FLOAT32_RESULTS: Final = frozenset(
    {
        "clip_grad_norm_",
        "distill_loss",
        "embedding_gradient_",
        "grad_norm",
        "grouped_matmul_accumulate_",
        "layernorm_mean",
        "linear_cross_entropy",
        "lm_head",
        "logprob_of_logits",
        "matmul_accumulate_",
        "rmsnorm_statistic",
        "selected_logprob",
    }
)


def floats64(name: str) -> tuple[torch.dtype, ...]:
    """The floating dtypes that a function takes."""
    return (torch.float32,) if name in FLOAT32_ARGUMENTS else FLOATS


def results64(name: str, dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """The dtypes of a function's results where its arguments have `dtype`."""
    if name == "sample":
        return (torch.int64,)
    if name == "attention_with_lse":
        return (dtype, torch.float32)
    if name == "add_rmsnorm":
        return (dtype, dtype)
    return (torch.float32,) if name in FLOAT32_RESULTS else (dtype,)


def taken64(name: str, argument: str, dtype: torch.dtype, *, whole: bool, alone: bool) -> bool:
    """Whether an argument may have `dtype` while all others are float32 or int64. `alone`: no other goes with it."""
    if whole:
        return dtype in WHOLE
    if argument in ALWAYS_FLOAT32 or not alone:
        return dtype == torch.float32
    return dtype in floats64(name)


def nothing64(seed: Tensor) -> int:
    """Of how many dtypes anything is wrong."""
    return 0
