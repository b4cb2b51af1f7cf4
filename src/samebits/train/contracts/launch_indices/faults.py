"""Planted faults of launches: of a kernel's mask, of a number's width, of memory, of programs, and of the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from torch import Tensor

from samebits.train.contracts.launch_indices import LAUNCHES, beyond
from samebits.train.contracts.launch_indices.deciding import Launch
from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Buffer


def _with_functions(name: str, **replaced: Callable[..., Any]) -> Launch:
    """A launch of a kernel that calls other functions by the names of those of _triton/rows.py."""

    def launch(m: Machine) -> None:
        m.replaced = {f"rows.{each}": function for each, function in replaced.items()}
        LAUNCHES[name](m)

    return launch


def _with_arguments(name: str, **changed: Callable[[Any], Any]) -> Launch:
    """A launch that hands something else over."""

    def launch(m: Machine) -> None:
        m.changed = changed
        LAUNCHES[name](m)

    return launch


def _block_with_a_row_more(rows: Any, start: Any, M: Any, H: Any, WIDTH: Any, ALIGNED: Any) -> Any:
    columns = start + tl.arange(0, WIDTH)
    offsets = rows[:, None].to(tl.int64) * H + columns[None, :]
    return offsets, (rows <= M)[:, None] & (columns < H)[None, :], columns


def _block_in_32_bits(rows: Any, start: Any, M: Any, H: Any, WIDTH: Any, ALIGNED: Any) -> Any:
    columns = start + tl.arange(0, WIDTH)
    offsets = rows[:, None] * H + columns[None, :]
    return offsets, (rows < M)[:, None] & (columns < H)[None, :], columns


def _half(buffer: Buffer) -> Buffer:
    return Buffer(buffer.name, buffer.length // 2)


def _one_longer(buffer: Buffer) -> Buffer:
    return Buffer(buffer.name, buffer.length + 1)


_A_ROW_MORE = _with_functions("softmax_forward", block_of=_block_with_a_row_more)
_IN_32_BITS = _with_functions("softmax_backward", block_of=_block_in_32_bits)
_HALF_THE_HEADS = _with_arguments("rope_rotate", y_ptr=_half)
_A_PROGRAM_MORE = _with_arguments("grad_square_pieces", program=lambda program: program + 1)
_ONE_LONGER = _with_arguments("swiglu_forward", y_ptr=_one_longer)


def a_row_more(parts: Tensor) -> Tensor:
    """The mask of a block lets one row more through than there is."""
    return beyond(parts, launches={**LAUNCHES, "softmax_forward": _A_ROW_MORE})


def offsets_in_32_bits(parts: Tensor) -> Tensor:
    """A row is multiplied by its length before it is widened: beyond 2^31 the offset is negative."""
    return beyond(parts, launches={**LAUNCHES, "softmax_backward": _IN_32_BITS})


def memory_for_half_the_heads(parts: Tensor) -> Tensor:
    """All heads are turned into memory for half of them."""
    return beyond(parts, launches={**LAUNCHES, "rope_rotate": _HALF_THE_HEADS})


def a_program_more(parts: Tensor) -> Tensor:
    """One program more than there are pieces, and it stores its sum without a mask."""
    return beyond(parts, launches={**LAUNCHES, "grad_square_pieces": _A_PROGRAM_MORE})


def memory_said_to_be_longer(parts: Tensor) -> Tensor:
    """A launch is described with an element more than it has: what would leave the buffer would stay unseen."""
    return beyond(parts, launches={**LAUNCHES, "swiglu_forward": _ONE_LONGER})


def a_kernel_left_out(parts: Tensor) -> Tensor:
    """Nobody describes what one kernel is handed."""
    return beyond(parts, launches={name: each for name, each in LAUNCHES.items() if name != "adamw_step"})
