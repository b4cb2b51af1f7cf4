"""The closed table of operations that samebits computes in torch's place, by name, all overloads.

Knows what goes where; the functions stand in products.py, sums.py, losses.py and pointwise.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from samebits.invariant import losses, pointwise, products, sums

ROUTED: Final[dict[str, Callable[..., Any]]] = {
    "mm": products.mm,
    "addmm": products.addmm,
    "bmm": products.bmm,
    "baddbmm": products.baddbmm,
    "mv": products.mv,
    "addmv": products.addmv,
    "dot": products.dot,
    "vdot": products.dot,
    "sum": sums.sum,
    "mean": sums.mean,
    "var": sums.var,
    "std": sums.std,
    "var_mean": sums.var_mean,
    "linalg_vector_norm": sums.vector_norm,
    "logsumexp": sums.logsumexp,
    "native_layer_norm": sums.layer_norm,
    "native_layer_norm_backward": sums.layer_norm_backward,
    "_fused_rms_norm": sums.rms_norm,
    "_fused_rms_norm_backward": sums.rms_norm_backward,
    "_softmax": losses.softmax,
    "_softmax_backward_data": losses.softmax_backward,
    "_log_softmax": losses.log_softmax,
    "_log_softmax_backward_data": losses.log_softmax_backward,
    "nll_loss_forward": losses.nll_loss,
    "nll_loss_backward": losses.nll_loss_backward,
    "embedding_dense_backward": losses.embedding_backward,
}
"""Sums, on every device."""

ROUTED_ON_CPU: Final[dict[str, Callable[..., Any]]] = {
    "exp": pointwise.exp,
    "exp2": pointwise.exp2,
    "log": pointwise.log,
    "rsqrt": pointwise.rsqrt,
    "sin": pointwise.sin,
    "cos": pointwise.cos,
    "tanh": pointwise.tanh,
    "erf": pointwise.erf,
    "sigmoid": pointwise.sigmoid,
    "silu": pointwise.silu,
    "silu_backward": pointwise.silu_backward,
    "gelu": pointwise.gelu,
    "gelu_backward": pointwise.gelu_backward,
    "pow": pointwise.power,
    "add": pointwise.add,
    "sub": pointwise.subtract,
}
"""Elementwise functions. On other devices every element gets the same instructions, and torch's own are harmless."""

RESUMED: Final[dict[str, Callable[..., None]]] = {
    "mm": products.resume_mm,
    "sum": sums.resume_sum,
    "embedding_dense_backward": losses.resume_embedding,
}
"""Weight gradients: (float32 accumulator, the operation's arguments) -> the accumulator's chains gone on with."""
