"""Operators that keep their bits, one folder each; its existence is its registration.

A function and its folder may have one name: `samebits.ops.gelu` is the function, whatever is imported when."""

import sys
from types import ModuleType
from typing import Any

from samebits.ops.adamw import AdamW, adamw_
from samebits.ops.attention import DenseCache, PagedCache, attention, attention_with_lse
from samebits.ops.cross_entropy import linear_cross_entropy
from samebits.ops.distill_loss import distill_loss
from samebits.ops.embedding import embedding, embedding_gradient_
from samebits.ops.gelu import gelu
from samebits.ops.grad_norm import clip_grad_norm_, grad_norm
from samebits.ops.grouped_matmul import grouped_matmul, grouped_matmul_accumulate_
from samebits.ops.layernorm import layernorm
from samebits.ops.lm_head import lm_head
from samebits.ops.logprob import logprob_of_logits, selected_logprob
from samebits.ops.matmul import linear, matmul, matmul_accumulate_
from samebits.ops.rmsnorm import add_rmsnorm, rmsnorm
from samebits.ops.rope import RopeScaling, rope
from samebits.ops.sample import sample
from samebits.ops.softmax import log_softmax, softmax
from samebits.ops.swiglu import swiglu

__all__ = [
    "AdamW",
    "DenseCache",
    "PagedCache",
    "RopeScaling",
    "adamw_",
    "add_rmsnorm",
    "attention",
    "attention_with_lse",
    "clip_grad_norm_",
    "distill_loss",
    "embedding",
    "embedding_gradient_",
    "gelu",
    "grad_norm",
    "grouped_matmul",
    "grouped_matmul_accumulate_",
    "layernorm",
    "linear",
    "linear_cross_entropy",
    "lm_head",
    "log_softmax",
    "logprob_of_logits",
    "matmul",
    "matmul_accumulate_",
    "rmsnorm",
    "rope",
    "sample",
    "selected_logprob",
    "softmax",
    "swiglu",
]


class _Functions(ModuleType):
    """This module. Importing a folder for the first time would put it in the place of the function of its name."""

    def __setattr__(self, name: str, value: Any) -> None:
        hides = isinstance(value, ModuleType) and name in __all__ and not isinstance(getattr(self, name), ModuleType)
        if not hides:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Functions
