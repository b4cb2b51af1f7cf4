"""How a checker drives decode steps: rows, the most keys of one, layers; drawn tokens, and drawn keys in pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.contracts.spec import Arguments
from samebits.infer.contracts.decode_step_gpu import PAGE_SIZE, STEPS
from samebits.infer.contracts.decode_step_gpu.model import CONFIG, make_weights
from samebits.model.contracts.small_model import make_text, seed_of
from samebits.model.contracts.specs import fractions, numbers, spec


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """The first row holds all of the keys, the others fewer."""
    rows, keys, layers = shape
    held = (fractions((rows,), 7 * seed + rows) * keys).astype("int64")
    held[0] = keys - 1
    places = rows * PAGE_SIZE * -(-(keys + STEPS) // PAGE_SIZE)
    sizes = (layers, 2, places, CONFIG.num_key_value_heads, CONFIG.head_dim)
    return {
        "ids": make_text(rows, seed),
        "held": torch.from_numpy(held),
        "kept": numbers(recipe, sizes, 900_000 + seed, format),
        "weights": make_weights(layers, recipe, format, seed_of(seed, keys)),
    }


SPECS = {"decode_step_gpu": spec("decode_step_gpu", "RKL", _make, rows=("ids", "held"), shared=("kept", "weights"))}
