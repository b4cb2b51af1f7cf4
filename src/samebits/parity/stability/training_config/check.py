"""How a checker drives the validator of training plans: rows of numbers near the places where answers change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from samebits.contracts.door import Arguments
from samebits.parity.stability.doors import door, fractions
from samebits.parity.stability.training_config import COLUMNS

# Every fifth model is large: 398,509,056 weights.
LARGE = {"vocabulary": 32768, "hidden": 1024, "layers": 24, "heads": 16, "key_heads": 4, "intermediate": 4096}
# (least, most) of a uniform whole number.
RANGES = {
    "sequences": (1, 4000), "micro_batch": (1, 6), "accumulation": (1, 8), "ranks": (1, 4), "length": (64, 2048),
    "epochs": (1, 12), "max_repeats": (1, 14), "vocabulary": (50, 400), "hidden": (2, 40), "layers": (1, 3),
    "heads": (1, 6), "key_heads": (1, 4), "intermediate": (8, 120), "tied": (0, 1),
}  # fmt: skip


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows = shape[0]
    drawn = dict(zip(COLUMNS, fractions((len(COLUMNS), rows), seed), strict=True))
    spare, size = fractions((2, rows), 2**40 + seed)
    made = {name: np.floor(low + drawn[name] * (high - low + 1)) for name, (low, high) in RANGES.items()}
    # Three models in four have heads that fit.
    fits = spare < 0.75
    made["key_heads"] = np.where(fits, 1 + np.floor(drawn["key_heads"] * 2), made["key_heads"])
    made["heads"] = np.where(fits, made["key_heads"] * np.floor(1 + 3 * drawn["heads"]), made["heads"])
    made["hidden"] = np.where(fits, made["heads"] * 2 * np.floor(1 + 8 * drawn["hidden"]), made["hidden"])
    for name, value in LARGE.items():
        made[name] = np.where(size < 0.2, value, made[name])
    per_epoch = made["sequences"] // (made["micro_batch"] * made["accumulation"] * made["ranks"])
    reach = per_epoch * made["epochs"]
    # From a quarter of what is reached to 32 times as much.
    asked = 2.0 ** (10 * drawn["max_steps"] - 5)
    made["max_steps"] = np.where(drawn["max_steps"] < 0.3, 0, np.floor(1 + reach * asked))
    steps = np.where(made["max_steps"] > 0, np.minimum(made["max_steps"], reach), reach)
    made["warmup"] = np.floor(1 + np.maximum(steps, made["max_steps"]) * drawn["warmup"] ** 3 * 1.25)
    made["peak_rate"], made["floor_ratio"] = 1e-4 + 1e-3 * drawn["peak_rate"], np.floor(drawn["floor_ratio"] * 4) / 10
    made["updates"] = np.maximum(0, steps + np.where(drawn["updates"] < 0.8, 0, np.sign(drawn["updates"] - 0.9)))
    made["stray"] = (drawn["stray"] < 0.05).astype(np.float64)
    return {"plans": torch.from_numpy(np.stack([made[name] for name in COLUMNS], 1))}


DOORS = {"training_config": door("training_config", "M", _make, rows=("plans",))}
