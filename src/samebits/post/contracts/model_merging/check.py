"""How a checker drives merging: unit vectors at angles from 0.3 to pi - 0.3, differences with many equal magnitudes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import numbers, spec

SHARES = (0.5, 0.25, 0.9, 0.1, 0.618)
DENSITIES = (0.5, 0.2, 0.7, 0.9)
# Models of which a mean is taken: at densities up to 0.7 what is not scaled up is six standard errors off and more.
DRAWS = 256


def _units(rows: Tensor) -> Tensor:
    return rows / torch.stack([(row @ row).sqrt() for row in rows])[:, None]


def _pairs(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    draws = [numbers("normal", shape, 3 * seed + place, "float32").double() + 2.0**-30 for place in range(2)]
    first = _units(draws[0])
    across = _units(draws[1] - (draws[1] * first).sum(1, keepdim=True) * first)
    angles = torch.linspace(0.3, math.pi - 0.3, shape[0], dtype=torch.float64)[:, None]
    second = _units(angles.cos() * first + angles.sin() * across)
    share = torch.tensor([SHARES[seed % len(SHARES)]], dtype=torch.float64)
    return {"first": first.float(), "second": second.float(), "share": share}


def _coarse(recipe: str, shape: Sequence[int], seed: int) -> Tensor:
    """Whole numbers and halves, so that magnitudes meet."""
    return (numbers(recipe, shape, seed, "float32").clamp(-8, 8) * 2).round() / 2


def _density(seed: int) -> Tensor:
    return torch.tensor([DENSITIES[seed % len(DENSITIES)]], dtype=torch.float64)


def _delta(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"delta": _coarse(recipe, shape, seed), "density": _density(seed)}


def _models(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    base, first, second = (_coarse(recipe, shape, 3 * seed + place) for place in range(3))
    return {"base": base, "first": first, "second": second, "density": _density(seed)}


def _drops(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {**_delta(shape, recipe, format, seed), "draws": torch.tensor([DRAWS])}


def _files(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {name: _coarse(recipe, shape, 3 * seed + place) for place, name in enumerate(("first", "second"))}


SPECS = {
    "drops": spec("drops", "NK", _drops, rows=("delta",), shared=("density", "draws")),
    "files": spec("files", "NK", _files, rows=("first", "second")),
    "spherical": spec("spherical", "NK", _pairs, rows=("first", "second"), shared=("share",)),
    "trimmed": spec("trimmed", "NK", _delta, rows=("delta",), shared=("density",)),
    "ties": spec("ties", "NK", _models, rows=("base", "first", "second"), shared=("density",)),
}
