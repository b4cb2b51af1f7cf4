"""Replays a revealed order where zeros of both signs, or subnormal numbers, stand among the terms: some sums leave them
out, or take another way where they meet one.

Probes and the first replay know no such terms. The sign of a sum that is zero is no part of an order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from samebits.checker.driving import CallError, Setting, said
from samebits.contracts.spec import Probe
from samebits.numerics.adder import HOPPER
from samebits.numerics.bits import BitsDifference, compare, round_to
from samebits.numerics.probes import Encoding
from samebits.numerics.recipes import make
from samebits.numerics.reveal import Revelation
from samebits.numerics.simulate import simulate

VECTORS: Final = {"float32": 60, "bfloat16": 240, "float16": 240}
"""By the output's format, of each kind: a narrow one rounds most differences away."""
KINDS: Final = ("zeros of both signs", "subnormal numbers")
NOT_ASKED: Final = "NaN, infinities, sums of nothing but subnormal numbers, columns of the output but the first"
_LOWERED: Final = {"float32": 2.0**-140, "bfloat16": 2.0**-128, "float16": 2.0**-17}


def of_row(setting: Setting, found: Revelation, terms: int, rows: int, format: str, vectors: int = 0) -> Revelation:
    """What was found of the first of so many rows, asked on special terms as well."""
    spec = setting.spec
    assert spec.probe is not None
    run = spec.probe(setting.call, terms, rows, 0, format, setting.device)
    return on_special_terms(run, found, terms, format, spec.encoding(terms) if spec.encoding else None, vectors)


def of_sum(function: Callable[..., object], found: Revelation, terms: int, format: str, device: str) -> Revelation:
    """The same of a plain sum."""

    def run(values: np.ndarray) -> float:
        try:
            result = function(torch.from_numpy(values).to(getattr(torch, format)).to(device))
        except Exception as error:
            raise CallError(f"raised {said(error)} on one tensor of {terms} values") from error
        assert isinstance(result, (Tensor, float, int))
        return float(result)

    return on_special_terms(run, found, terms, format)


def on_special_terms(
    run: Probe, found: Revelation, terms: int, leaf: str, encoding: Encoding | None = None, vectors: int = 0
) -> Revelation:
    """The revelation with these replays counted in. One that does not hold already stays as it is."""
    if not found.holds:
        return found
    matched = total = 0
    for kind in KINDS:
        inputs = special_terms(kind, terms, vectors or VECTORS[found.output], leaf)
        if encoding is not None:
            inputs = np.asarray(encoding.inputs(inputs), np.float32)
        measured = np.array([run(row.copy()) for row in inputs], np.float32)
        difference = _difference(run, found, measured, inputs, leaf, encoding)
        total += len(measured)
        matched += len(measured) - (difference.count if difference else 0)
        if difference:
            return replace(
                found,
                replayed=found.replayed + matched,
                replay_total=found.replay_total + total,
                verdict=f"does not hold: not this order where {kind} are among the terms: {difference}",
            )
    return replace(found, replayed=found.replayed + matched, replay_total=found.replay_total + total)


def special_terms(kind: str, terms: int, count: int, leaf: str) -> np.ndarray:
    """Ordinary and cancelling numbers, with one term that is special, about a quarter of them, or three quarters."""
    ordinary, cancelling, drawn = (
        make(recipe, (count, terms), 11, leaf) for recipe in ("normal", "cancelling", "normal")
    )
    values = np.where(np.arange(count)[:, None] % 2 == 0, ordinary, cancelling)
    scattered = make("normal", (count, terms), 12)
    few, most = scattered > 0.8, scattered > -0.8
    one = np.arange(terms)[None] == np.arange(count)[:, None] % terms
    choice = np.arange(count)[:, None] // 2 % 3
    special = drawn * np.float32(0) if kind == KINDS[0] else round_to(drawn * np.float32(_LOWERED[leaf]), leaf)
    return np.where(np.choose(choice, (one, few, most)), special, values).astype(np.float32)


def _difference(
    run: Probe, found: Revelation, measured: np.ndarray, inputs: np.ndarray, leaf: str, encoding: Encoding | None
) -> BitsDifference | None:
    """None where the order gives all of it, be products rounded or not."""
    assert found.order is not None
    values, model = (inputs if encoding is None else encoding.leaves(inputs)), HOPPER
    scale = np.float32(1)
    if encoding is None:
        unit = np.zeros(inputs.shape[1], np.float32)
        unit[0] = 1
        scale = np.float32(run(unit))
        if leaf != "float32":
            # A leaf times one: inside a fused node a 16-bit subnormal keeps the exponent of its own format.
            values, model = (inputs, np.ones_like(inputs)), replace(HOPPER, operand=leaf)
    difference = None
    for products in ("exact", "rounded") if encoding is not None else ("exact",):
        with np.errstate(all="ignore"):
            sums = simulate(found.order, values, products=products, model=model) * scale
            finished = encoding.finish(sums) if encoding else sums
        expected = round_to(np.asarray(finished, np.float32), found.output)
        found_here = compare(measured + np.float32(0), expected + np.float32(0))
        if found_here is None:
            return None
        difference = difference or found_here
    return difference
