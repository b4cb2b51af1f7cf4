"""Planted faults of calls: two sizes change places on the way to C++ or to Triton, a call has another name."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from samebits.train.contracts.product_sizes import out_of_place


def _edit(where: str, old: str, new: str) -> Callable[[str, str], str]:
    """The source of one file with one passage changed."""

    def edited(place: str, text: str) -> str:
        if place != where:
            return text
        if text.count(old) != 1:
            raise ValueError(f"{place}: {old!r} stands there {text.count(old)} times; allowed: once")
        return text.replace(old, new)

    return edited


_LIBRARY = _edit(
    "matmul/cpu_kernel.py",
    "        rows,\n        columns,\n        depth,\n",
    "        rows,\n        depth,\n        columns,\n",
)
_TRITON = _edit(
    "matmul/triton_kernel.py", "        m,\n        n,\n        k,\n", "        m,\n        k,\n        n,\n"
)
_UNPACKED = _edit("logprob/cpu_kernel.py", "(rows, depth), vocabulary = hid", "(depth, rows), vocabulary = hid")
_RENAMED = _edit(
    "matmul/triton_kernel.py", "    run(\n        matmul_addressed,\n", "    go(\n        matmul_addressed,\n"
)


def columns_and_depth_to_the_library(parts: Tensor) -> Tensor:
    """(m, k, n) where the C++ function takes (m, n, k)."""
    return out_of_place(parts, edit=_LIBRARY)


def columns_and_depth_to_triton(parts: Tensor) -> Tensor:
    """The same on the way to a kernel of the GPU."""
    return out_of_place(parts, edit=_TRITON)


def rows_and_depth_misread(parts: Tensor) -> Tensor:
    """The sizes are handed over in their order, and are taken from the tensor in another."""
    return out_of_place(parts, edit=_UNPACKED)


def a_call_by_another_name(parts: Tensor) -> Tensor:
    """A call that nobody reads."""
    return out_of_place(parts, edit=_RENAMED)
