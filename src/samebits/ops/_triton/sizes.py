"""Sizes of launches as plain numbers. Triton's own functions serve kernels too, and take microseconds of every call."""

from __future__ import annotations


def cdiv(size: int, part: int) -> int:
    """Parts that cover a size."""
    return -(-size // part)


def next_power_of_2(size: int) -> int:
    """The least power of two that is not less than a size of at least one."""
    return 1 << (size - 1).bit_length()
