"""How a checker drives `swiglu`: inputs, exact values and bounds, launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.elementary import MAXIMUM_ULP
from samebits.numerics.recipes import make
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY, allowed_error
from samebits.ops.swiglu.reference import swiglu64

TRITON_BLOCKS_AND_WARPS = ((128, 1), (256, 2), (1024, 8), (2048, 4))
# Float64's own roundings in the exact values.
FLOAT64_STEPS = 8
OF_SIGMOID = MAXIMUM_ULP["sigmoid"] * 2 * FLOAT32_ROUNDOFF


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    dtype = getattr(torch, format)
    return {
        name: torch.from_numpy(make(recipe, shape, 2 * seed + number, format)).to(dtype)
        for number, name in enumerate(("gate", "up"))
    }


def _exact(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    gate, up, dy64 = arguments["gate"].double(), arguments["up"].double(), dy.double()
    s = gate.sigmoid()
    flow, dup = dy64 * up, dy64 * gate * s
    # gate * s * (1 - s) carries the error of s twice, the second time beside the 1 that it is taken from.
    magnitude = flow.abs() * s * (1 + gate.abs())
    # A sigmoid below the smallest normal number is off by up to two of the smallest steps, and gate lifts them.
    lifted = (1 + gate.abs()) * 4 * FLOAT32_TINY

    def bounded(exact: Tensor, size: Tensor, of_sigmoid: int, roundings: int, factor: Tensor) -> Bounded:
        relative = of_sigmoid * OF_SIGMOID
        allowed = allowed_error(exact, size, relative, FLOAT64_STEPS, roundings, dy.dtype)
        return Bounded(exact=exact, allowed=allowed + lifted * (1 + factor.abs()))

    y = swiglu64(gate, up)
    return {
        "output": bounded(y, y.abs(), 1, 2, up),
        "gate": bounded(flow * (s + gate * s * (1 - s)), magnitude, 2, 5, flow),
        "up": bounded(dup, dup.abs(), 1, 2, dy64),
    }


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; block times warps by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops._triton.elements import ElementLaunch

    return [{"launch": ElementLaunch(block=block, warps=warps)} for block, warps in TRITON_BLOCKS_AND_WARPS]


SPECS = {
    "swiglu": OperatorSpec(
        name="swiglu",
        row_arguments=("gate", "up"),
        shared_arguments=(),
        shape_axes="MH",
        make=_make,
        exact=_exact,
        launches=launches,
    )
}
