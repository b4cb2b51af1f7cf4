"""A mode that sees every operation of torch inside ours, and the list of those that are exact.

Exact: one machine cannot give another result than the next. Copies, views, indexing, whole numbers, comparisons,
extremes, changes of dtype, and one IEEE operation an element: a sum, a difference, a product, a quotient."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samebits.ops import registering

COPIES = """
alias _to_copy arange as_strided cat clone contiguous copy_ detach detach_ diagonal empty empty_like empty_strided
expand eye fill_ flip full full_like gather index index_copy_ index_fill_ index_put index_put_ index_select lift_fresh
masked_fill masked_fill_ masked_select new_empty new_empty_strided new_full new_ones new_zeros nonzero ones ones_like
permute repeat _reshape_alias reshape scalar_tensor select select_backward slice slice_backward split split_with_sizes
squeeze stack t transpose unbind unsqueeze unfold _unsafe_view view where zero_ zeros zeros_like _local_scalar_dense
constant_pad_nd
"""
ORDER = """
all amax amin aminmax any argmax argmin bitwise_and bitwise_not bitwise_or bitwise_xor clamp clamp_ clamp_min
count_nonzero eq equal ge gt isfinite isinf isnan le logical_and logical_not logical_or lt max maximum min minimum ne
searchsorted sort topk abs neg sign _unique2
"""
ROUNDED_ONCE = "add add_ _foreach_add_ sub sub_ rsub mul mul_ div div_"
# Of whole numbers alone.
WHOLE = "sum cumsum bitwise_left_shift bitwise_right_shift remainder floor_divide"
EXACT = frozenset(f"{COPIES} {ORDER} {ROUNDED_ONCE}".split())
EXACT_OF_INTEGERS = frozenset(WHOLE.split())


class NotOursError(AssertionError):
    """Torch would have rounded in its own way."""


def _floats(values: Any) -> bool:
    return any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in tree_leaves(values))


def _meets_twice(indices: Any) -> bool:
    """Whether an index_put would add two numbers to one place. Masks name a place once."""
    given = [each.reshape(-1) for each in indices if each is not None and each.dtype != torch.bool]
    return bool(given) and torch.stack(torch.broadcast_tensors(*given)).unique(dim=1).shape[1] < given[0].numel()


def refusal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Why an operation of torch may decide no bit, or None where it is exact."""
    name = func.overloadpacket.__name__
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    if tensors and all(each.device.type == "meta" for each in tensors):
        return None  # No numbers are there.
    if name in EXACT_OF_INTEGERS and not _floats((args, kwargs)):
        return None
    if name not in EXACT:
        return f"aten.{name} is not among the exact operations"
    if name in ROUNDED_ONCE.split() and kwargs.get("alpha", 1) != 1:
        return f"aten.{name} with alpha={kwargs['alpha']} may be fused or not"
    accumulates = name.startswith("index_put") and kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    if accumulates and _meets_twice(args[1]):
        return f"aten.{name} adds several numbers to one place"
    return None


class Watching(TorchDispatchMode):
    """Within the block an operation that is not exact raises; `seen` counts the others, `ours` our own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.ours: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if func.namespace == "samebits":
            self.ours[name] += 1
            # What an operator of ours does inside is seen too.
            with self:
                return registering._runs[name](*args, **kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            # Made of other operations, which are those that count.
            with self:
                return func.decompose(*args, **kwargs)
        if func.namespace not in ("prim", "profiler"):
            self.seen[name] += 1
            reason = refusal(func, args, kwargs)
            if reason is not None:
                raise NotOursError(reason)
        return func(*args, **kwargs)
