"""torch's own samples of its operators (OpInfo) under invariant mode: right, refused in one line, or as torch does it.

A routed result is right where it is as near to float64 as torch's own is, twice over, or within 32 roundings of the
largest value: what chains of a few dozen terms, which these samples have, can lose."""

from __future__ import annotations

import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from samebits.invariant import InvariantError, invariant_mode

SEES_NOTHING = {"masked.softmax", "masked.log_softmax", "masked.softmin"}
"""Samples with rows that are masked whole: NaN in torch, and in samebits, as declared, 0 or -inf."""

STATISTICS = {"native_layer_norm"}
"""Its mean and scale stay float32 in samebits, as in torch on the GPU; torch on the CPU rounds them."""


def operators() -> list[Any]:
    """torch's test modules import `expecttest` for tests of their own; a stand-in is enough where it is missing."""
    stand_in = ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _wide(value: Any) -> Any:
    return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _is_right(name: str, found: Any, stock: Any, exact: Any) -> bool:
    pairs = [tree_leaves(each) for each in (found, stock, exact)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    for got, torchs, wide in zip(*pairs, strict=True):
        if not isinstance(got, Tensor):
            continue
        if got.shape != torchs.shape or (got.dtype != torchs.dtype and name not in STATISTICS):
            return False
        if not got.is_floating_point():
            continue
        finite = torch.isfinite(wide) & torch.isfinite(torchs)
        if name not in SEES_NOTHING and not torch.equal(got.isnan(), torchs.isnan()):
            return False
        if not finite.any():
            continue
        wanted = wide[finite].double()
        error = float((got[finite].double() - wanted).abs().max())
        allowed = 32 * torch.finfo(got.dtype).eps * max(1.0, float(wanted.abs().max()))
        if not error <= max(2 * float((torchs[finite].double() - wanted).abs().max()), allowed):
            return False
    return True


def outcome(name: str, operator: Any, sample: Any) -> str:
    """right, refused, untouched (nothing was routed), without a reference, or WRONG: and why."""

    def run(change: Any = lambda value: value) -> Any:
        given, args, kwargs = (tree_map(change, each) for each in (sample.input, sample.args, sample.kwargs))
        return operator(given, *args, **kwargs)

    try:
        with invariant_mode() as mode:
            found = run()
    except InvariantError as refused:
        return "refused" if "\n" not in str(refused) else f"WRONG: the reason has several lines: {refused}"
    except Exception as error:  # whatever it is, it must be torch's own
        try:
            run()
        except Exception:
            return "refused"
        return f"WRONG: {type(error).__name__}: {error}"
    if not mode.routed:
        return "untouched"
    stock = run()
    try:
        exact = run(_wide)
    except (RuntimeError, TypeError):
        return "without a reference"
    return "right" if _is_right(name, found, stock, exact) else f"WRONG: {sample}"


def judge(dtype: torch.dtype, names: set[str] | None = None, most: int = 25) -> Iterator[tuple[str, Counter[str]]]:
    """(operator, how often which outcome) for every operator, or those named, of which torch has samples."""
    for operator in operators():
        if (names is not None and operator.name not in names) or dtype not in operator.dtypes:
            continue
        name = ".".join(filter(None, (operator.name, operator.variant_test_name)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = list(operator.sample_inputs("cpu", dtype, requires_grad=False))[:most]
            yield name, Counter(outcome(name, operator, sample) for sample in samples)
