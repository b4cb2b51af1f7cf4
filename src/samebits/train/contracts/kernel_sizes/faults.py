"""Planted faults of the records that tell a kernel its sizes: the same fields, taken by position as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, make_dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

from samebits.train.contracts.kernel_sizes import RECORDS, attended


def _loose(record: Any) -> Any:
    """A record of the same fields and properties that also takes its values by position."""
    named = [each.name for each in fields(record)]
    computed = {name: value for name, value in vars(record).items() if isinstance(value, property)}
    return make_dataclass(record.__name__, named, namespace=computed, frozen=True)


_SEQUENCES = {**RECORDS, "Sequences": _loose(RECORDS["Sequences"])}
_RULE = {**RECORDS, "Rule": _loose(RECORDS["Rule"])}
_NONE: Mapping[str, int] = MappingProxyType({})


def sequences_by_position(q: Tensor, k: Tensor, v: Tensor, *, by_position: Mapping[str, int] = _NONE) -> Tensor:
    """Starts and lengths may be handed over without their names: two of them can change places unnoticed."""
    return attended(q, k, v, by_position=by_position, records=_SEQUENCES)


def rule_by_position(q: Tensor, k: Tensor, v: Tensor, *, by_position: Mapping[str, int] = _NONE) -> Tensor:
    """Window and scale may be handed over without their names."""
    return attended(q, k, v, by_position=by_position, records=_RULE)


def lengths_change_places(q: Tensor, k: Tensor, v: Tensor, *, by_position: Mapping[str, int] = _NONE) -> Tensor:
    """What is refused is right, and the start of the queries is where their length belongs."""

    def swapped(*, q_start: Tensor, q_length: Tensor, **others: Any) -> Any:
        return RECORDS["Sequences"](q_start=q_length - q_length, q_length=q_start, **others)

    return attended(q, k, v, by_position=by_position, records={**RECORDS, "Sequences": swapped})
