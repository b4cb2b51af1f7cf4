"""How a checker drives `rope`, plain and scaled: inputs, exact values and bounds, launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.elementary import MAXIMUM_ULP
from samebits.numerics.recipes import make
from samebits.ops.rope import RopeScaling, rope
from samebits.ops.rope.reference import parts, rope64, turned64
from samebits.ops.rope.scaling import attention_factor, frequencies
from samebits.ops.rounding import FLOAT32_ROUNDOFF, allowed_error

TRITON_PAIRS_HEADS_AND_WARPS = ((16, 1, 1), (32, 4, 2), (64, 8, 4), (128, 2, 8))
# The specs' default, which every call of a checker uses.
THETA = 10000.0
LONGEST = 32768
YARN: Final = RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=4096)
# Float64's own roundings in the exact values.
FLOAT64_STEPS = 16
OF_CIRCULAR = max(MAXIMUM_ULP["sin"], MAXIMUM_ULP["cos"]) * 2 * FLOAT32_ROUNDOFF


def rope_scaled(x: Tensor, positions: Tensor) -> Tensor:
    """The second subject, neighbours as pairs and frequencies by yarn: a checker hands over tensors alone."""
    return rope(x, positions, layout="interleaved", scaling=YARN)


def rope_scaled64(x: Tensor, positions: Tensor) -> Tensor:
    """rope64 as the second subject asks for it."""
    return rope64(x, positions, layout="interleaved", scaling=YARN)


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """Positions from 0 up, in no order."""
    return {
        "x": torch.from_numpy(make(recipe, shape, seed, format)).to(getattr(torch, format)),
        "positions": torch.arange(shape[0]) * (331 * seed) % LONGEST,
    }


def _exact(arguments: Arguments, dy: Tensor, interleaved: bool, scaling: RopeScaling | None) -> Mapping[str, Bounded]:
    x, positions, dy64 = arguments["x"].double(), arguments["positions"], dy.double()
    angles = torch.tensor(frequencies(x.shape[-1], THETA, scaling), dtype=torch.float64)
    phase, factor = positions.double()[:, None] * angles, attention_factor(scaling)

    def bounded(exact: Tensor, given: Tensor) -> Bounded:
        first, second = parts(given.shape[-1], interleaved)
        # Frequency and phase are each rounded once: an error of the angle in proportion to the angle.
        both = factor * (given[..., first].abs() + given[..., second].abs()) * (1 + phase[:, None, :])
        magnitude = torch.empty_like(given)
        magnitude[..., first], magnitude[..., second] = both, both
        # Sine or cosine itself, the factor and the product with it.
        relative = OF_CIRCULAR + 2 * FLOAT32_ROUNDOFF
        return Bounded(exact=exact, allowed=allowed_error(exact, magnitude, relative, FLOAT64_STEPS, 2, dy.dtype))

    return {
        "output": bounded(turned64(x, phase, factor, interleaved, False), x),
        "x": bounded(turned64(dy64, phase, factor, interleaved, True), dy64),
    }


def _exact_plain(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    return _exact(arguments, dy, False, None)


def _exact_scaled(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    return _exact(arguments, dy, True, YARN)


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; pairs and heads of a tile times warps by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops.rope.triton_kernel import RopeLaunch

    return [
        {"launch": RopeLaunch(pairs=pairs, heads=heads, warps=warps)}
        for pairs, heads, warps in TRITON_PAIRS_HEADS_AND_WARPS
    ]


SPECS = {
    "rope": OperatorSpec(
        name="rope",
        row_arguments=("x", "positions"),
        shared_arguments=(),
        shape_axes="THD",
        make=_make,
        exact=_exact_plain,
        launches=launches,
        without_gradient=("positions",),
    ),
    "rope_scaled": OperatorSpec(
        name="rope_scaled",
        row_arguments=("x", "positions"),
        shared_arguments=(),
        shape_axes="THD",
        make=_make,
        exact=_exact_scaled,
        launches=launches,
        without_gradient=("positions",),
    ),
}
