"""The closed table of operations that cannot change an order: they add nothing up, or what they add is exact.

Names without `aten::`, all overloads, in-place forms under their own name. Knows nothing of how they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

_VIEWS = """
alias as_strided broadcast_to chunk contiguous detach detach_ diagonal expand expand_as flatten lift lift_fresh
lift_fresh_copy matrix_H mH mT movedim moveaxis narrow numpy_T permute ravel real reshape _reshape_alias reshape_as
select slice split split_with_sizes squeeze squeeze_ swapaxes swapdims t t_ tensor_split transpose transpose_ unbind
unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ _unsafe_view view view_as
view_copy hsplit vsplit dsplit expand_copy permute_copy transpose_copy t_copy squeeze_copy unsqueeze_copy slice_copy
select_copy
"""
_COPIES = """
_to_copy to clone copy copy_ _copy_from cat concat concatenate stack hstack vstack dstack column_stack repeat
repeat_interleave tile roll flip fliplr flipud rot90 constant_pad_nd pad tril tril_ triu triu_ diag_embed index_select
gather index take take_along_dim masked_select masked_fill masked_fill_ where nonzero index_fill index_fill_
slice_backward select_backward diagonal_backward slice_scatter select_scatter embedding _local_scalar_dense item
pin_memory is_pinned resize_ set_ _unsafe_index fill_diagonal_ _pin_memory equal is_same_size meshgrid
"""
_CREATION = """
arange empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_full new_ones new_zeros zeros
zeros_like ones ones_like full full_like eye scalar_tensor tril_indices triu_indices fill fill_ zero zero_ linspace
_efficientzerotensor one_hot
"""
# One IEEE operation an element, or a few without a choice; torch's vector and scalar forms agree to the last bit.
_EXACT = """
abs abs_ neg neg_ sign sgn ceil ceil_ floor floor_ round round_ trunc frac mul mul_ sqrt sqrt_ reciprocal reciprocal_
square maximum minimum fmax fmin clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_ clip relu relu_ leaky_relu
leaky_relu_ hardtanh hardtanh_ relu6 threshold threshold_ hardswish hardsigmoid addcmul addcmul_ addcdiv addcdiv_ eq
ne lt le gt ge isnan isinf isfinite isposinf isneginf logical_and logical_or logical_not logical_xor logical_not_
logical_and_ bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __and__ __or__
__xor__ __lshift__ __rshift__ bitwise_and_ bitwise_or_ signbit copysign nan_to_num nan_to_num_ fmod remainder positive
eq_ ne_ lt_ le_ gt_ ge_ threshold_backward hardtanh_backward leaky_relu_backward hardswish_backward
hardsigmoid_backward tanh_backward sigmoid_backward deg2rad rad2deg conj resolve_conj resolve_neg prelu _prelu_kernel
heaviside isclose
"""
# Library functions with one form only; tests/invariant/test_places.py measures that a value's place does not matter.
_MEASURED = """
expm1 log2 log10 log1p tan asin acos atan asinh acosh erfc erfinv log_sigmoid log_sigmoid_forward log_sigmoid_backward
log1p_ xlogy
"""
_TWO_FORMS = """
sinh cosh atanh mish mish_backward elu elu_ elu_backward selu celu softplus softplus_backward logit softshrink atan2
logaddexp logaddexp2 hypot
"""
# Maxima are exact in any order; the first of equals wins.
_ORDER_FREE = """
amax amin max min aminmax argmax argmin any all msort searchsorted bucketize allclose count_nonzero isin _unique2
bincount
"""
VIEWS: Final[frozenset[str]] = frozenset(_VIEWS.split())
HARMLESS: Final[frozenset[str]] = VIEWS | frozenset(
    " ".join((_COPIES, _CREATION, _EXACT, _MEASURED, _ORDER_FREE)).split()
)


def tensors_in(values: object) -> Iterator[Tensor]:
    """Every tensor among arguments, lists included."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for each in values:
            yield from tensors_in(each)
    elif isinstance(values, dict):
        yield from tensors_in(tuple(values.values()))


def _all_wide(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """No 16-bit float on the CPU, where a rounding in between depends on the place."""
    return not any(
        each.device.type == "cpu" and each.dtype in (torch.bfloat16, torch.float16)
        for each in tensors_in((args, kwargs))
    )


def _plain_sum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    return alpha == 1 or _all_wide(args, kwargs)


def _true_quotient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("rounding_mode") is None


def _once_a_place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """scatter along an axis on which each line has one entry: no place is met twice."""
    target, axis, index = args[0], args[1], args[2]
    return bool(index.dim() == 0 or index.shape[axis] <= 1) and target.dim() == index.dim()


def _overwrites_alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """index_put with a mask, or with one value for every place: duplicates cannot disagree."""
    accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    indices, values = args[1], args[2]
    masked = all(index is None or index.dtype == torch.bool for index in indices)
    return not accumulate and (masked or values.numel() == 1)


def _distinct(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """index_copy, as a static cache does it, to places that all differ."""
    places = args[2].reshape(-1).tolist()
    return len(set(places)) == len(places)


def _same_value(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """scatter of one number, or once a place."""
    return not isinstance(args[3] if len(args) > 3 else None, Tensor) or _once_a_place(args, kwargs)


def _no_reduction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("reduction", args[2] if len(args) > 2 else 1) == 0)


def _stable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("stable") is True


HARMLESS_IF: Final[dict[str, Callable[[tuple[Any, ...], dict[str, Any]], bool]]] = {
    **dict.fromkeys(("add", "add_", "sub", "sub_", "rsub"), _plain_sum),
    **dict.fromkeys(("div", "div_", "true_divide"), _true_quotient),
    **dict.fromkeys(("lerp", "lerp_"), _all_wide),
    **dict.fromkeys(
        (
            "_foreach_add", "_foreach_add_", "_foreach_mul", "_foreach_mul_", "_foreach_div", "_foreach_div_",
            "_foreach_sub", "_foreach_sub_", "_foreach_sqrt", "_foreach_sqrt_", "_foreach_addcdiv_",
            "_foreach_addcmul_", "_foreach_lerp_", "_foreach_neg", "_foreach_zero_", "_foreach_copy_",
            "_foreach_maximum_", "_foreach_reciprocal_",
        ),
        _all_wide,
    ),
    **dict.fromkeys(("scatter_add", "scatter_add_"), _once_a_place),
    **dict.fromkeys(("scatter", "scatter_"), _same_value),
    **dict.fromkeys(("index_copy", "index_copy_"), _distinct),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _overwrites_alone),
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss"), _no_reduction),
    "sort": _stable,
    "argsort": _stable,
}  # fmt: skip
"""Harmless in some forms: name to the question whether this call has one."""

HARMLESS_OFF_CPU: Final[frozenset[str]] = frozenset(_TWO_FORMS.split())
"""Elementwise functions whose vector form on the CPU has other bits; elsewhere there is only one form."""

HARMLESS_LIBRARIES: Final = ("samebits", "prim", "profiler")
"""Our own operations need no voucher; torch's own bookkeeping computes nothing."""
