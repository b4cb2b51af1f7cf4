"""Which loads and stores of Triton's kernels z3 can put outside their buffers: all sizes at once, on the CPU.

The kernels' own sources are run, on numbers without values; what a launch hands over is stated in launches_*.py and
trusted. What goes through descriptors is kept inside by the hardware."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from samebits.train.contracts.launch_indices import (
    launches_elements,
    launches_grouped,
    launches_products,
    launches_rows,
    launches_torch,
    launches_update,
)
from samebits.train.contracts.launch_indices.deciding import Launch, shown
from samebits.train.contracts.launch_indices.reference import kernels

LAUNCHES: Final[Mapping[str, Launch]] = MappingProxyType(
    {
        **launches_elements.KERNELS,
        **launches_rows.KERNELS,
        **launches_products.KERNELS,
        **launches_grouped.KERNELS,
        **launches_torch.KERNELS,
        **launches_update.KERNELS,
    }
)
_PRODUCTS: Final = "its addresses are products of three and four sizes, for which z3 gave no answer in minutes"
_WARPS: Final = "its warps hand each other the number of a tile through shared memory"
_COLUMNS: Final = (
    "its warps hand each other blocks through shared memory, and descriptors load them; what goes by pointers is the"
    " accumulator, each of whose columns has one program, as index_proofs.py of the norms has it"
)
_BLOCKS: Final = "its warps hand each other blocks through shared memory, and descriptors load them"
_STEP: Final = "it lies in a layer beside this one; decode_step_gpu compares its bits on a GPU"
UNDECIDED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attention_forward": _PRODUCTS,
        "attention_merge": _PRODUCTS,
        "attention_delta": _PRODUCTS,
        "attention_dq": _PRODUCTS,
        "attention_dk_dv": _PRODUCTS,
        "attention_forward_marked": _PRODUCTS,
        "attention_dq_marked": _PRODUCTS,
        "attention_dk_dv_marked": _PRODUCTS,
        "attention_hopper": _WARPS,
        "attention_dq_hopper": _WARPS,
        "attention_dk_dv_hopper": _WARPS,
        "specialised_column_chains": _COLUMNS,
        "attention_of_one_query": _BLOCKS,
        **dict.fromkeys(("merge_waiting", "product_of_few_rows", "rmsnorm_waiting", "rotate_and_keep"), _STEP),
        "function_elements": "it tries elementary functions, and lies in a layer above this one",
        "twice_plus_one": "the tracer of kernels tries itself with it, and launches it nowhere else",
        "philox_blocks": "it tries elementary functions, and lies in a layer above this one",
    }
)
"""Kernels of which nothing is shown here, and why."""


def asked() -> list[str]:
    """Every kernel in the sources of which something is to be shown."""
    return [name for name in kernels() if name not in UNDECIDED]


def beyond(parts: Tensor, *, launches: Mapping[str, Launch] = LAUNCHES) -> Tensor:
    """(parts, 3), the kernels dealt out to the parts: kernels that no launch describes, accesses that can leave their
    buffers, buffers that could be one element shorter than a launch says."""
    found = torch.zeros(len(parts), 3, dtype=torch.int64)
    for number, name in enumerate(asked()):
        line = found[number % len(parts)]
        if name not in launches:
            line[0] += 1
            continue
        said = shown(launches[name])
        line[1] += len(said.outside)
        line[2] += len(said.untouched)
    return found
