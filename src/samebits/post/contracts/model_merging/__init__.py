"""Merging as its contract asks for it: a row is a tensor, merged by itself."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import safetensors.torch
import torch
from torch import Tensor

from samebits.post.merge_methods import (
    Combining,
    Cosine,
    Drop,
    Trim,
    combine,
    kept,
    magnitudes,
    slerp,
    slerp_factors,
    threshold,
)
from samebits.post.merge_recipe import recipe_of
from samebits.post.merging import merge

TENSOR = "model.layers.0.mlp.up_proj.weight"
PLAIN = Combining(elect=True, normalize=True, scale=1.0)


def spherical(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """(N, K): row by row the spherical mean; `share` is how far it is from the first."""
    rows = []
    for one, two in zip(first, second, strict=True):
        angle = Cosine()
        angle.add(one, two)
        rows.append(slerp(one, two, slerp_factors(angle.value(), float(share[0]))))
    return torch.stack(rows)


def trimmed(delta: Tensor, density: Tensor) -> Tensor:
    """(N, K): of each row the largest magnitudes, as many as the density asks for; zeros elsewhere."""
    return torch.stack([_trimmed_row(row, float(density[0])) for row in delta])


def ties(base: Tensor, first: Tensor, second: Tensor, density: Tensor) -> Tensor:
    """(N, K): row by row the merge of two models by TIES, each with a weight of one half."""
    rows = []
    for row, *others in zip(base, first, second, strict=True):
        deltas = [_trimmed_row(other - row, float(density[0])) for other in others]
        rows.append(combine(row, deltas, [0.5, 0.5], PLAIN))
    return torch.stack(rows)


def _trimmed_row(delta: Tensor, density: float) -> Tensor:
    return Trim(threshold(lambda: [magnitudes(delta)], kept(density, len(delta))))(delta)


def mean_of_drops(delta: Tensor, density: Tensor, draws: Tensor, *, rescale: bool = True) -> Tensor:
    """float64 (N, K): the mean of so many models, each with another few of the differences dropped by DARE."""
    rows, flat = delta.shape[0], delta.reshape(-1)
    dropped = (Drop(draw, "a model", float(density[0]), rescale)(flat) for draw in range(int(draws)))
    total = torch.zeros(flat.shape, dtype=torch.float64)
    for each in dropped:
        total += each.double()
    return (total / int(draws)).reshape(rows, -1)


def merged_files(first: Tensor, second: Tensor) -> Tensor:
    """What the file of a merge holds whose two models have one tensor each: their mean, in halves that are exact."""
    with TemporaryDirectory() as folder:
        models = []
        for name, tensor in (("first", first), ("second", second)):
            path = Path(folder) / name
            path.mkdir()
            (path / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
            safetensors.torch.save_file({TENSOR: tensor.contiguous()}, path / "model.safetensors")
            models.append({"model": str(path), "parameters": {"weight": 0.5}})
        merge(recipe_of({"merge_method": "linear", "models": models}, "recipe"), Path(folder) / "out")
        (file,) = (Path(folder) / "out").glob("*.safetensors")
        found: Tensor = safetensors.torch.load_file(file)[TENSOR]
        return found.clone()
