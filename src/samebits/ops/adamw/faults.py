"""Planted faults of AdamW: each breaks one promise, and the check of that promise must say so."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops.adamw.check import side_by_side
from samebits.ops.arguments import DTYPES


def default_beta2(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, **changed: float) -> Tensor:
    """Breaks accuracy: the configured 0.95 never arrives, 0.999 is used."""
    return side_by_side(param, grad, exp_avg, exp_avg_sq, **{**changed, "beta2": 0.999})


def bias_correction_forgotten(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, **changed: float
) -> Tensor:
    """Breaks accuracy: the step number is so large that both corrections are 1."""
    return side_by_side(param, grad, exp_avg, exp_avg_sq, **{**changed, "step": 10**6})


def uninitialised_state(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, **changed: float) -> Tensor:
    """Breaks accuracy: the moments hold what the memory held before, here the parameter's own bits."""
    return side_by_side(param, grad, param.float().clone(), param.float().abs(), **changed)


def decay_through_the_gradient(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, **changed: float
) -> Tensor:
    """Breaks accuracy: L2 regularisation, which the second moment then divides away."""
    decay = changed.get("weight_decay", 0.1)
    pulled = (grad.float() + decay * param.float()).to(grad.dtype)
    return side_by_side(param, pulled, exp_avg, exp_avg_sq, **{**changed, "weight_decay": 0.0})


def epsilon_inside_the_root(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, **changed: float
) -> Tensor:
    """Breaks accuracy: sqrt(v + eps) is sqrt(v) + 1e-4 where v is small."""
    return side_by_side(param, grad, exp_avg, exp_avg_sq, **{**changed, "eps": 1e-4})


def moments_in_used_memory(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> Tensor:
    """Breaks v >= 0: the second moment holds what the memory held before, here the parameter's own bits."""
    return side_by_side(param, grad, exp_avg, param.float().clone())


def hides_overflow(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> Tensor:
    """Breaks the infinite second moment: it is cut to the largest number, and nothing shows."""
    return side_by_side(param, grad, exp_avg, exp_avg_sq).nan_to_num()


def takes_anything(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, **changed: float) -> Tensor:
    """Breaks refusal: what does not fit is made to."""
    narrow = param.dtype if param.dtype in DTYPES else torch.float32
    sensible = {**changed, "step": max(int(changed.get("step", 1)), 1), "lr": abs(changed.get("lr", 1e-2))}
    sensible["beta1"], sensible["eps"] = min(changed.get("beta1", 0.9), 0.999), max(changed.get("eps", 1e-8), 1e-12)
    return side_by_side(
        param.to(narrow), grad[: param.shape[0]].to(narrow), exp_avg.float(), exp_avg_sq.float(), **sensible
    )
