"""How a checker drives quantization: weights of a recipe, any codes and scales, and the patterns of float16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import numbers, spec
from samebits.numerics.elementary.philox import philox_uint32_native
from samebits.post.contracts.quantization import KINDS, kind_of

FINITE = 63_488
"""Patterns of float16 that are finite numbers."""


def _kind(seed: int) -> torch.Tensor:
    return torch.tensor([seed % len(KINDS)])


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    # A scale must fit its storage: weights stay where float16 does.
    weight = numbers(recipe, shape, seed, format).clamp(-60_000, 60_000)
    return {"weight": weight, "kind": _kind(seed)}


def _finite_patterns() -> np.ndarray:
    every = np.arange(2**16, dtype=np.uint16).view(np.int16)
    return every[np.isfinite(every.view(np.float16))]


def _patterns(count: int, seed: int) -> np.ndarray:
    """Some of the finite ones, or all of them."""
    finite = _finite_patterns()
    return finite if count == FINITE else finite[philox_uint32_native(seed, 0, count, threads=1) % FINITE]


def _make_groups(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """Any code of the format, any finite scale and minimum of its storage; the largest among them."""
    rows, width = shape
    kind = kind_of(_kind(seed))
    drawn = philox_uint32_native(3 * seed, 0, rows * width, threads=1).astype(np.int64)
    codes = kind.least + drawn.reshape(rows, width) % (kind.most - kind.least + 1)
    scale, minimum = (
        torch.from_numpy(_patterns(rows * width // kind.group, 3 * seed + place).copy()).view(torch.float16)
        for place in (1, 2)
    )
    scale[0] = minimum[0] = torch.finfo(torch.float16).max
    codes[0, 0] = kind.most
    held = (("scale", scale), ("minimum", minimum))
    shaped = {name: each.to(kind.store).reshape(rows, -1) for name, each in held}
    return {"codes": torch.from_numpy(codes), **shaped, "kind": _kind(seed)}


def _make_patterns(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"patterns": torch.from_numpy(_patterns(shape[0], seed).copy())}


SPECS = {
    "quantization": spec("quantization", "NK", _make, rows=("weight",), shared=("kind",)),
    "groups": spec("groups", "NK", _make_groups, rows=("codes", "scale", "minimum"), shared=("kind",)),
    "patterns": spec("patterns", "NK", _make_patterns, rows=("patterns",), shared=()),
}
