"""How a checker drives calls with buffers of stated sizes: each buffer is exactly as large as it must be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import numbers, spec


def _make_product(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, depth, columns = shape
    sizes = {"a": (rows, depth), "accumulator": (rows, columns), "b": (depth, columns)}
    return {name: numbers(recipe, size, 3 * seed + i, format) for i, (name, size) in enumerate(sizes.items())}


def _make_norm(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, width = shape
    return {
        "dy": numbers(recipe, (rows, width), 3 * seed, format),
        "x": numbers(recipe, (rows, width), 3 * seed + 1, format),
        "statistic": numbers("normal", (rows,), 3 * seed + 2, format).abs(),
        "accumulator": torch.zeros(width),
    }


def _make_gate(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {name: numbers(recipe, shape, 2 * seed + i, format) for i, name in enumerate(("gate", "up"))}


def _make_step(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    names = ("param", "grad", "exp_avg", "exp_avg_sq")
    return {name: numbers(recipe, shape, 4 * seed + i, format).abs() for i, name in enumerate(names)}


def _make_kept(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"keys": numbers(recipe, shape, seed, format), "storage": torch.zeros(*shape)}


SPECS = {
    "product_into": spec("product_into", "MKN", _make_product, rows=("a", "accumulator"), shared=("b",)),
    "norm_gradient_into": spec(
        "norm_gradient_into", "MH", _make_norm, rows=("dy", "x", "statistic"), shared=("accumulator",)
    ),
    "gate_gradients": spec("gate_gradients", "MH", _make_gate, rows=("gate", "up")),
    "step_of": spec("step_of", "MH", _make_step, rows=("param", "grad", "exp_avg", "exp_avg_sq")),
    "kept": spec("kept", "MH", _make_kept, rows=("keys",), shared=("storage",)),
}
