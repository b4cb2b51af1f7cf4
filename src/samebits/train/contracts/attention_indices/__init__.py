"""Which loads and stores of attention's kernels can leave their buffers: all sizes at once, on the CPU.

The kernels' own sources are run on numbers without values, as `launch_indices` does it; their addresses are products of
up to five sizes, so each gets a certificate (certificates.py). What a launch hands over is stated in launches_*.py and
handed.py, and trusted: tables whose sequences lie in their tensors, pages of the storage, lengths and windows below
2^30, heads below 2^15, lines of row sums and programs below 2^31, tensors of fewer than 2^62 elements, tiles of up to
128 rows. What goes through descriptors is kept inside by the hardware."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from samebits.records.report import UnjudgedError
from samebits.train.contracts.attention_indices import launches_backward, launches_forward, launches_marked
from samebits.train.contracts.attention_indices.deciding import Launch, shown
from samebits.train.contracts.attention_indices.reference import kernels

LAUNCHES: Final[Mapping[str, Launch]] = MappingProxyType(
    {**launches_forward.KERNELS, **launches_backward.KERNELS, **launches_marked.KERNELS}
)
_WARPS: Final = (
    "its warps hand each other the number of a tile through shared memory; descriptors load and store blocks"
)
UNDECIDED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("attention_hopper", "attention_dq_hopper", "attention_dk_dv_hopper"), _WARPS),
        "attention_of_one_query": "its warps hand each other blocks through shared memory; descriptors load them",
    }
)
"""Kernels of attention of which nothing is shown here, and why: of those for Hopper what goes by pointers is left,
which is queries of decode, results, row sums and marks."""
ELSEWHERE: Final = frozenset({"attention_uncovered"})
"""What `launch_indices` decides."""


def asked() -> list[str]:
    """Every kernel in the sources of attention of which something is to be shown."""
    return [name for name in kernels() if name not in UNDECIDED and name not in ELSEWHERE]


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
        if said.open and not said.outside:
            raise UnjudgedError(f"{name}: neither a certificate nor a counterexample for {said.open[0]}")
        line[1] += len(said.outside)
        line[2] += len(said.untouched)
    return found
