"""Level 4: every number of two 16-bit formats, one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from components.square_of_positive import square_of_positive
from components.square_of_positive.faults import of_the_magnitude
from torch import Tensor

from samebits.contracts.proof import Proof
from samebits.numerics.bits import compare

FORMATS = (torch.bfloat16, torch.float16)


def _first_difference(kernel: Callable[[Tensor], Tensor]) -> tuple[int, str]:
    """How many numbers were tried, and the first whose square is not the correctly rounded one."""
    tried = 0
    for dtype in FORMATS:
        every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype)
        finite = every[every.isfinite()]
        exact = finite.double().clamp(min=0).square().to(dtype)
        # Alone, and beside all others: the same bits.
        whole, alone = kernel(finite[None]), kernel(finite[:, None])
        tried += len(finite)
        for found in (whole[0], alone[:, 0]):
            differs = compare(exact, found)
            if differs is not None:
                return tried, f"{dtype}: {differs}"
    return tried, ""


def every_number() -> Proof:
    """The kernel is correctly rounded and blind to its batch on every finite number of both formats."""
    tried, witness = _first_difference(square_of_positive)
    _, refuted = _first_difference(of_the_magnitude)
    expected = (2**16 - 2 * 2**7) + (2**16 - 2 * 2**10)
    return Proof(
        kind="enumeration",
        bound="all 65,280 finite bfloat16 and 63,488 finite float16 numbers",
        cases=tried,
        expected=expected,
        planted=1,
        caught=int(bool(refuted)),
        witness=witness,
    )
