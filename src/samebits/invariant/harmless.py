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
select_copy view_as_real view_as_complex imag _conj _neg_view
"""
_COPIES = """
_to_copy to clone copy copy_ _copy_from cat concat concatenate stack hstack vstack dstack column_stack repeat
repeat_interleave tile roll flip fliplr flipud rot90 constant_pad_nd pad tril tril_ triu triu_ diag_embed index_select
gather index take take_along_dim masked_select masked_fill masked_fill_ where nonzero index_fill index_fill_
slice_backward select_backward diagonal_backward slice_scatter select_scatter embedding _local_scalar_dense item
pin_memory is_pinned resize_ set_ _unsafe_index fill_diagonal_ _pin_memory equal is_same_size meshgrid complex conj
resolve_conj resolve_neg
"""
_CREATION = """
arange empty empty_like empty_strided empty_permuted new_empty new_empty_strided new_full new_ones new_zeros zeros
zeros_like ones ones_like full full_like eye scalar_tensor tril_indices triu_indices fill fill_ zero zero_ linspace
_efficientzerotensor one_hot
"""
# One IEEE operation an element, or a few without a choice; torch's vector and scalar forms agree to the last bit.
_EXACT = """
abs abs_ neg neg_ sign sgn ceil ceil_ floor floor_ round round_ trunc frac mul mul_ reciprocal reciprocal_
square fmax fmin relu relu_ leaky_relu leaky_relu_ hardtanh hardtanh_ relu6 threshold threshold_ hardswish hardsigmoid
eq ne lt le gt ge isnan isinf isfinite isposinf isneginf logical_and logical_or logical_not logical_xor logical_not_
logical_and_ bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __and__ __or__
__xor__ __lshift__ __rshift__ bitwise_and_ bitwise_or_ signbit copysign nan_to_num nan_to_num_ positive
eq_ ne_ lt_ le_ gt_ ge_ threshold_backward hardtanh_backward leaky_relu_backward hardswish_backward
hardsigmoid_backward deg2rad rad2deg prelu _prelu_kernel heaviside isclose sign_ sgn_ trunc_ frac_ square_ copysign_
logical_or_ logical_xor_ bitwise_not_ bitwise_xor_ hardswish_ hardsigmoid_
"""
# Library functions with one form only; tests/invariant/test_places.py measures that a value's place does not matter.
_MEASURED = """
expm1 log2 log10 log1p tan asin acos atan asinh acosh erfc erfinv log_sigmoid log_sigmoid_forward log_sigmoid_backward
log1p_ xlogy
"""
_TWO_FORMS = """
sinh cosh atanh mish mish_backward elu elu_ elu_backward selu celu logit softshrink atan2
logaddexp logaddexp2 hypot
"""
# Exact in any order; the first of equals wins, a zero's sign too.
_ORDER_FREE = """
aminmax argmax argmin any all msort searchsorted bucketize allclose count_nonzero isin _unique2 histc
"""
_MOVES = """
broadcast_ allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_ gather_ scatter_ alltoall_
alltoall_base_ send recv_ recv_any_source_ barrier monitored_barrier_
"""
_FUNCTIONAL_MOVES = """
all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_into_tensor_out all_to_all_single broadcast
broadcast_ wait_tensor
"""
_ON_LISTS = """
add add_ mul mul_ div div_ sub sub_ sqrt sqrt_ addcdiv addcdiv_ addcmul addcmul_ lerp lerp_ neg neg_ zero_ copy_
maximum maximum_ minimum minimum_ reciprocal reciprocal_ abs abs_ clamp_min clamp_min_ clamp_max clamp_max_
"""
CLAMPS: Final = ("clamp", "clamp_min", "clamp_max", "clip")
VIEWS: Final[frozenset[str]] = frozenset(_VIEWS.split())
MOVING: Final[frozenset[str]] = VIEWS | frozenset(f"{_COPIES} {_CREATION}".split())
"""They compute nothing, of whatever kind of numbers."""

HARMLESS: Final[frozenset[str]] = MOVING | frozenset(f"{_EXACT} {_MEASURED} {_ORDER_FREE}".split())


def tensors_in(values: object) -> Iterator[Tensor]:
    """Every tensor among arguments, lists included."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for each in values:
            yield from tensors_in(each)
    elif isinstance(values, dict):
        yield from tensors_in(tuple(values.values()))


def _plain_sum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Without a factor: with one, a processor may fuse the two steps in a vector and not behind its end."""
    return bool(kwargs.get("alpha", args[2] if len(args) > 2 else 1) == 1)


def _true_quotient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Not rounded to a whole number, or of whole numbers alone."""
    return kwargs.get("rounding_mode") is None or all(map(_whole, args))


def _whole(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex())
    return isinstance(value, int)


def _once_a_place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """scatter in which no place is met twice."""
    target, axis, index = args[0], args[1], args[2]
    if target.dim() != index.dim():
        return False
    if index.dim() == 0 or index.shape[axis] <= 1:
        return True
    ordered = index.sort(axis).values
    return not bool(
        (ordered.narrow(axis, 1, index.shape[axis] - 1) == ordered.narrow(axis, 0, index.shape[axis] - 1)).any()
    )


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


def _no_other_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The largest of one tensor, or what lies between two numbers. Of two tensors' zeros one is chosen by place."""
    return not any(isinstance(each, Tensor) for each in (*args[1:], *kwargs.values()))


def _counts_in_order(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """bincount of ones, or on the CPU: a GPU adds weights in the order of arrival."""
    weights = kwargs.get("weights", args[1] if len(args) > 1 else None)
    return weights is None or weights.device.type == "cpu"


def _no_reduction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("reduction", args[2] if len(args) > 2 else 1) == 0)


HARMLESS_IF: Final[dict[str, Callable[[tuple[Any, ...], dict[str, Any]], bool]]] = {
    **dict.fromkeys(("add", "add_", "sub", "sub_", "rsub"), _plain_sum),
    **dict.fromkeys(("div", "div_", "true_divide"), _true_quotient),
    **dict.fromkeys(("scatter_add", "scatter_add_"), _once_a_place),
    **dict.fromkeys(("scatter", "scatter_"), _same_value),
    **dict.fromkeys(("max", "min", *CLAMPS, *(f"{name}_" for name in CLAMPS)), _no_other_tensor),
    "bincount": _counts_in_order,
    **dict.fromkeys(("index_copy", "index_copy_"), _distinct),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _overwrites_alone),
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss"), _no_reduction),
}
"""Harmless in some forms: name to the question whether this call has one."""

HARMLESS_OFF_CPU: Final[frozenset[str]] = frozenset(_TWO_FORMS.split())
"""Elementwise functions whose vector form on the CPU has other bits; elsewhere there is only one form."""

HARMLESS_LISTS_OFF_CPU: Final[frozenset[str]] = frozenset(f"_foreach_{name}" for name in _ON_LISTS.split())
"""Elementwise, on lists of tensors: an optimizer's step. On the CPU they are taken apart."""

HARMLESS_LIBRARIES: Final = ("samebits", "prim", "profiler", "fsdp")
"""Our own operations; torch's own bookkeeping computes nothing; FSDP2's own only copy into and out of its buffers."""

HARMLESS_OF_OTHERS: Final[frozenset[str]] = frozenset(
    [f"c10d::{name}" for name in _MOVES.split()] + [f"_c10d_functional::{name}" for name in _FUNCTIONAL_MOVES.split()]
)
"""What ranks send one another without adding anything."""
