"""Why an operation is refused and what to do instead: the error, and the closed table of reasons.

Knows no operation that is allowed; what is in no table at all is refused too."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final


class InvariantError(RuntimeError):
    """An operation whose bits could depend on the batch, the padding or the memory around a value."""


class InvariantWarning(UserWarning):
    """Something that the mode cannot keep and has no right to refuse; said once a block."""


class RefusedError(Exception):
    """A routed operation was asked for in a form that samebits cannot compute; its text says which."""


UNKNOWN: Final = "no order is known for it; write it with routed operations, or use strict=False, which only lists it"

_ATTENTION = "its order depends on the batch and on lengths; call torch.nn.functional.scaled_dot_product_attention"
_FAST_PATH = (
    "its order depends on the batch; torch.backends.mha.set_fastpath_enabled(False) gives the form that is kept"
)
_DROPOUT = "its random numbers depend on a value's place in the batch; use model.eval() or p=0"
_RANDOM = "its random numbers depend on a value's place in the batch; draw them before the block"
_ATOMIC = "it adds in the order of arrival; use samebits.ops.embedding, or an index without duplicates"
_CONVOLUTION = "samebits has no convolution; write it as a matrix product"
_FUSED = "its vector and scalar forms differ; use torch.optim.AdamW(..., fused=False) or samebits.ops.adamw"
_NORM = "its order depends on the sizes; use torch.linalg.vector_norm or samebits.ops.grad_norm.grad_norm"
_SCAN = "a scan of floats is cut by the library; use integers or a matrix product"
_TAIL = "on the CPU torch computes it otherwise in the last elements of a tensor; samebits has no such function"
_TIES = "its answer among equal values depends on the sizes; use sort(stable=True)"

REASONS: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_cudnn_attention_backward",
            "_scaled_dot_product_fused_attention_overrideable",
            "_scaled_dot_product_attention_math",
            "_flash_attention_forward",
            "_flash_attention_backward",
            "_efficient_attention_forward",
            "_efficient_attention_backward",
        ),
        _ATTENTION,
    ),
    **dict.fromkeys(("_transformer_encoder_layer_fwd", "_native_multi_head_attention"), _FAST_PATH),
    **dict.fromkeys(
        (
            "rand",
            "rand_like",
            "randn",
            "randn_like",
            "randint",
            "randint_like",
            "randperm",
            "normal",
            "normal_",
            "uniform",
            "uniform_",
            "exponential_",
            "random_",
        ),
        _RANDOM,
    ),
    **dict.fromkeys(
        ("bernoulli", "bernoulli_", "native_dropout", "rrelu_with_noise", "alpha_dropout", "feature_dropout"), _DROPOUT
    ),
    "multinomial": "its random numbers depend on a value's place in the batch; use samebits.ops.sample",
    **dict.fromkeys(
        (
            "scatter_reduce",
            "scatter_reduce_",
            "put_",
            "index_reduce",
            "index_reduce_",
            "embedding_bag",
            "_embedding_bag",
            "_embedding_bag_dense_backward",
            "bincount",
        ),
        _ATOMIC,
    ),
    **dict.fromkeys(
        ("scatter", "scatter_", "index_copy", "index_copy_", "masked_scatter", "masked_scatter_"),
        "with two values for one place the winner is not fixed; use gather or where",
    ),
    **dict.fromkeys(("convolution", "convolution_backward", "_convolution", "mkldnn_convolution"), _CONVOLUTION),
    "norm": _NORM,
    **dict.fromkeys(("_fused_adamw_", "_fused_adam_", "_fused_sgd_", "_fused_adagrad_"), _FUSED),
    **dict.fromkeys(("cumprod", "cumprod_", "logcumsumexp", "_logcumsumexp"), _SCAN),
    **dict.fromkeys(
        (
            "sinh",
            "cosh",
            "atanh",
            "mish",
            "mish_backward",
            "elu",
            "elu_",
            "elu_backward",
            "selu",
            "celu",
            "logit",
            "softshrink",
            "atan2",
            "logaddexp",
            "logaddexp2",
            "float_power",
            "hypot",
            "special_log_ndtr",
        ),
        _TAIL,
    ),
    **dict.fromkeys(("median", "nanmedian", "mode", "unique_consecutive"), _TIES),
}
"""Operation to reason and advice. Names without `aten::`, all overloads."""

_RANKS = (
    "ranks add in the backend's order; with DDP write `with model.no_sync():` in the block and add gradients after it"
    " with samebits.parallel.collectives.all_reduce; with FSDP2 call samebits.parallel.fsdp.add_by_tree(model, world)"
)
REASONS_OF_LIBRARIES: Final[dict[str, str]] = dict.fromkeys(("c10d", "_c10d_functional"), _RANKS)
"""Namespaces that are not aten's: DDP's reducer, FSDP's and DTensor's collectives."""

_REASONS_OF_MODELS: Final[dict[str, tuple[str, tuple[int, int] | None]]] = {
    "MptModel": (
        "MptModel adds position biases that count from the last key: padding and a cache change its own numbers",
        None,
    ),
    "MiniMaxLightningAttention": (
        "MiniMaxLightningAttention adds by blocks of a call's tokens, and token by token with a cache: chunks of a"
        " prompt and a cache change its own numbers",
        None,
    ),
    "DogeModel": (
        "DogeModel of transformers before 5.18 makes no causal mask where nothing is padded: it then looks at later"
        " tokens, so padding and a cache change its own numbers; upgrade transformers to 5.18 or later",
        (5, 18),
    ),
}
"""Modules, by the name of their class, that no order of sums keeps: they compute other numbers in a longer batch. With
the first version of transformers that does not."""


@cache
def reason_of_model(name: str) -> str | None:
    """Why a module of this class is refused, or None. Asked before every module, hence remembered."""
    why, mended = _REASONS_OF_MODELS.get(name, (None, None))
    if mended is None:
        return why
    try:
        installed = version("transformers")
    except PackageNotFoundError:  # a class of the user's own that has this name
        return None
    major, minor = installed.split(".")[:2]
    return why if (int(major), int(minor)) < mended else None
