"""How an operator's tensors may be cut over ranks without its bits moving: axes by name, as an operator registers them.

Rows, output columns or heads may be cut; never an axis that is summed over. Knows no rank and no DTensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to cut: the axis of each argument that is cut, and of each output (None: whole); all else is whole."""

    arguments: Mapping[str, int]
    outputs: tuple[int | None, ...]


Cuts: TypeAlias = Sequence[Cut] | Callable[[Mapping[str, Any]], Sequence[Cut]]
"""The ways beside leaving all whole, or a function of the arguments by name: a tensor tells its `ndim`."""


def by_rows(outputs: int, *names: str) -> Sequence[Cut]:
    """The first axis of these arguments and of every output."""
    return [Cut(dict.fromkeys(names, 0), (0,) * outputs)]


def by_element(outputs: int, *names: str) -> Cuts:
    """Any axis, the same of these arguments and of every output."""

    def cuts(arguments: Mapping[str, Any]) -> Sequence[Cut]:
        axes = range(arguments[names[0]].ndim)
        return [Cut(dict.fromkeys(names, axis), (axis,) * outputs) for axis in axes]

    return cuts
