"""Planted faults of the library's calls: buffers too short at either end, functions left out, pages left open."""

from __future__ import annotations

from torch import Tensor

from samebits.train.contracts.library_indices import beyond

# Names of functions, and numbers of their pointers.
OUTPUT = ("attention_forward", 6)
KEYS = ("attention_forward", 4)


def output_too_short(parts: Tensor) -> Tensor:
    """Attention's output lacks bytes that are written."""
    return beyond(parts, groups=("operators",), shorter=OUTPUT, sides=("end",))


def keys_too_short(parts: Tensor) -> Tensor:
    """Attention's keys lack bytes that are read."""
    return beyond(parts, groups=("operators",), shorter=KEYS, sides=("start",))


def functions_left_out(parts: Tensor) -> Tensor:
    """Only what lies beside the operators is called."""
    return beyond(parts, groups=("others",), sides=("end",))


def pages_left_open(parts: Tensor) -> Tensor:
    """The pages beside buffers may be touched: nothing would be seen."""
    return beyond(parts, groups=("others",), open=True, sides=("end",))
