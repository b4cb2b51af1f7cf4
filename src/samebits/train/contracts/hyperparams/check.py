"""How a checker drives the optimizer by a table of configurations: none of them has a number that is a default."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import fractions, numbers, spec

# The configuration that the constructor's defaults were once taken for.
FIRST = (0.9, 0.95, 1e-8, 0.1)


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, steps, width = shape
    drawn = fractions((rows, 4 + steps), 8 * seed)
    config = np.empty((rows, 4 + steps))
    config[:, 0] = 0.5 + 0.375 * drawn[:, 0]
    config[:, 1] = 0.75 + 0.2 * drawn[:, 1]
    config[:, 2] = 2.0 ** -(3 + 20 * drawn[:, 2])
    config[:, 3] = 0.05 + 0.5 * drawn[:, 3]
    config[:, 4:] = 2.0 ** -(3 + 6 * drawn[:, 4:])
    config[0, :4] = FIRST
    return {
        "config": torch.from_numpy(config),
        "param": numbers("normal", (rows, width), 8 * seed + 1, format),
        "grads": numbers(recipe, (rows, steps, width), 8 * seed + 2, format),
    }


SPECS = {"hyperparams": spec("hyperparams", "MTH", _make, rows=("config", "param", "grads"))}
