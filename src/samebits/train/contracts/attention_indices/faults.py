"""Planted faults of attention's launches: of memory, of a mask, of programs, and of the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from torch import Tensor

from samebits.train.contracts.attention_indices import LAUNCHES, beyond
from samebits.train.contracts.attention_indices.deciding import Launch
from samebits.train.contracts.attention_indices.machine import OneWay
from samebits.train.contracts.launch_indices.values import Buffer


def _with_functions(name: str, **replaced: Callable[..., Any]) -> Launch:
    """A launch of a kernel that calls other functions by the names of those of triton_blocks.py."""

    def launch(m: OneWay) -> None:
        m.replaced = {f"triton_blocks.{each}": function for each, function in replaced.items()}
        LAUNCHES[name](m)

    return launch


def _with_arguments(name: str, **changed: Callable[[Any], Any]) -> Launch:
    """A launch that hands something else over."""

    def launch(m: OneWay) -> None:
        m.changed = changed
        LAUNCHES[name](m)

    return launch


def _rows_without_a_mask(ptr: Any, offsets: Any, inside: Any, HEAD: Any, PADDED: Any, MASKED: Any, ALIGNED: Any) -> Any:
    return tl.load(ptr + offsets[:, None] + tl.arange(0, PADDED)[None, :])


def _one_head(buffer: Buffer) -> Buffer:
    """Of two, or of as many as there are."""
    return Buffer(buffer.name, buffer.length // 2)


def _one_longer(buffer: Buffer) -> Buffer:
    return Buffer(buffer.name, buffer.length + 1)


def _one_shorter(buffer: Buffer) -> Buffer:
    return Buffer(buffer.name, buffer.length - 1)


ONE_HEAD = _with_arguments("attention_merge", lse_ptr=_one_head)
_NO_MASK = _with_functions("attention_delta", load_rows=_rows_without_a_mask)
_A_PROGRAM_MORE = _with_arguments("attention_merge", program=lambda program: program + 1)
ONE_LONGER = _with_arguments("attention_delta", statistics_ptr=_one_longer)
_ONE_SHORTER = _with_arguments("attention_merge", sums_ptr=_one_shorter)


def memory_for_half_the_heads(parts: Tensor) -> Tensor:
    """Logarithms of all heads go into memory for half of them."""
    return beyond(parts, launches={**LAUNCHES, "attention_merge": ONE_HEAD})


def a_mask_left_out(parts: Tensor) -> Tensor:
    """Rows are loaded whether or not a sequence has them."""
    return beyond(parts, launches={**LAUNCHES, "attention_delta": _NO_MASK})


def a_program_more(parts: Tensor) -> Tensor:
    """One program more than there are queries and heads."""
    return beyond(parts, launches={**LAUNCHES, "attention_merge": _A_PROGRAM_MORE})


def memory_said_to_be_longer(parts: Tensor) -> Tensor:
    """A launch is described with an element more than it has: what would leave the buffer would stay unseen."""
    return beyond(parts, launches={**LAUNCHES, "attention_delta": ONE_LONGER})


def an_element_too_few(parts: Tensor) -> Tensor:
    """The states of splits lack their last element."""
    return beyond(parts, launches={**LAUNCHES, "attention_merge": _ONE_SHORTER})


def a_kernel_left_out(parts: Tensor) -> Tensor:
    """Nobody describes what one kernel is handed."""
    return beyond(parts, launches={name: each for name, each in LAUNCHES.items() if name != "attention_dq"})
