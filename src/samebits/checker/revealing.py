"""Reveals the order in which one row of a function's output is summed, through the public function the function is
driven by.

Knows specs and no operator; what an order is and how it is found is in `numerics`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.checker.driving import CallError, Setting, said
from samebits.numerics.bits import format_of
from samebits.numerics.reveal import Revelation, reveal

# Vectors of each recipe. A 16-bit output rounds most differences away, so more are needed to tell orders apart.
REPLAYS = {"float32": 100, "bfloat16": 400, "float16": 400}


def reveal_row(setting: Setting, terms: int, rows: int, row: int, format: str) -> Revelation:
    """The order of `terms` terms in row `row` of `rows`. A function that raises raises CallError."""
    spec = setting.spec
    if spec.probe is None:
        raise ValueError(f"{spec.name}: its output does not show its sum, so no order can be revealed")
    if not 0 <= row < rows:
        raise ValueError(f"row must be in 0..{rows - 1}, got row={row}")
    encoding = spec.encoding(terms) if spec.encoding is not None else None
    formats: list[str] = []

    def recorded(*arguments: object) -> Tensor:
        output = setting.call(*arguments)
        formats[:] = [format_of(output)]
        return output

    run = spec.probe(recorded, terms, rows, row, format, setting.device)
    run(np.zeros(terms, np.float32))  # tells in which format results are rounded
    output = formats[0]
    return reveal(
        run,
        terms,
        leaf=format,
        output=output,
        probe="auto" if encoding is None else "nonnegative",
        encoding=encoding,
        replays=REPLAYS.get(output, 0),
    )


def reveal_sum(function: Callable[..., Any], terms: int, format: str, device: str) -> Revelation:
    """The order of a plain sum: a tensor of `terms` values to one number."""
    dtype, formats = getattr(torch, format), [format]

    def run(values: np.ndarray) -> float:
        given = torch.from_numpy(values).to(dtype).to(device)
        try:
            result = function(given)
        except Exception as error:
            raise CallError(
                f"raised {said(error)} on one tensor of {terms} values; pass `like` (--like) to call it as an operator"
            ) from error
        if isinstance(result, Tensor):
            formats[:] = [format_of(result)]
        return float(result)

    run(np.zeros(terms, np.float32))
    return reveal(run, terms, leaf=format, output=formats[0], replays=REPLAYS.get(formats[0], 0))
