"""The closed table of operations that samebits computes in torch's place, by name, all overloads.

Knows what goes where; the functions are in products.py, sums.py, additions.py, losses.py, selections.py and
pointwise.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from samebits.invariant import additions, complex_numbers, losses, pointwise, products, selections, sums

ROUTED: Final[dict[str, Callable[..., Any]]] = {
    "mm": products.mm,
    "addmm": products.addmm,
    "bmm": products.bmm,
    "baddbmm": products.baddbmm,
    "mv": products.mv,
    "addmv": products.addmv,
    "_grouped_mm": products.grouped_mm,
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
    "_safe_softmax": losses.safe_softmax,
    "mse_loss": losses.mse_loss,
    "mse_loss_backward": losses.mse_loss_backward,
    "binary_cross_entropy_with_logits": losses.binary_cross_entropy_with_logits,
    "index_put": additions.index_put,
    "_index_put_impl": additions.index_put_impl,
    "_unsafe_index_put": additions.index_put,
    "index_add": additions.index_add,
    "scatter_add": additions.scatter_add,
    "cumsum": additions.cumsum,
    "topk": selections.topk,
    "sort": selections.sort,
    "kthvalue": selections.kthvalue,
    "amax": selections.amax,
    "amin": selections.amin,
}
"""Sums, and what chooses among equal values, on every device."""

ROUTED_OF_OTHERS: Final[dict[str, Callable[..., Any]]] = {"transformers::grouped_mm_fallback": products.grouped_mm}
"""Operations of other libraries, by their full name."""

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
    "rsub": pointwise.subtract_from,
    "sqrt": pointwise.sqrt,
    "addcmul": pointwise.addcmul,
    "addcdiv": pointwise.addcdiv,
    "lerp": pointwise.lerp,
    "tanh_backward": pointwise.tanh_backward,
    "sigmoid_backward": pointwise.sigmoid_backward,
    "softplus": pointwise.softplus,
    "softplus_backward": pointwise.softplus_backward,
    "glu": pointwise.glu,
    "glu_backward": pointwise.glu_backward,
    "fmod": pointwise.fmod,
    "remainder": pointwise.remainder,
    "maximum": selections.maximum,
    "minimum": selections.minimum,
    "clamp": selections.clamp,
    "clamp_min": selections.clamp_min,
    "clamp_max": selections.clamp_max,
    "polar": complex_numbers.polar,
}
"""Elementwise functions. On other devices every element gets the same instructions, and torch's own are harmless."""

RESUMED: Final[dict[str, dict[int, Callable[..., None]]]] = {
    "mm": {0: products.resume_mm},
    "_grouped_mm": {0: products.resume_grouped_mm},
    "sum": {0: sums.resume_sum},
    "embedding_dense_backward": {0: losses.resume_embedding},
    "native_layer_norm_backward": {1: sums.resume_layer_norm_weight, 2: sums.resume_layer_norm_bias},
    "_fused_rms_norm_backward": {1: sums.resume_rms_norm_weight},
}
"""Weight gradients, by their place among the results: (float32 accumulator, the operation's arguments) -> its chains
gone on with."""
