"""How a checker drives `selected_logprob`: inputs, exact values and bounds, launch numbers, the resumed gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.elementary import MAXIMUM_ULP
from samebits.numerics.elementary.philox import philox_uint32_native
from samebits.numerics.recipes import make
from samebits.ops.logprob import selected_logprob_weight_gradient_
from samebits.ops.logprob.reference import BLOCK, logprob64
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY, FLOAT64_ROUNDOFF, allowed_error

# The specs' default, which every call of a checker uses.
IGNORED = -100


def make_arguments(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    """Rows of the recipe, a weight that keeps logits of ordinary rows within a few units, every fifth row ignored."""
    rows, depth, vocabulary = shape
    dtype = getattr(torch, format)
    ids = torch.from_numpy(philox_uint32_native(seed, 7, rows, threads=1).astype(np.int64) % vocabulary)
    ids[4::5] = IGNORED
    return {
        "hidden": torch.from_numpy(make(recipe, (rows, depth), 2 * seed, format)).to(dtype),
        "weight": torch.from_numpy(make("normal", (vocabulary, depth), 2 * seed + 1, format) * 0.125).to(dtype),
        "ids": ids,
    }


class Errors(NamedTuple):
    """Exact logits and probabilities with what float32 may miss of them, row by row."""

    logits: Tensor
    probabilities: Tensor
    selected: Tensor
    """Of the log-probability of the row's token."""
    exponents: Tensor
    """Of z - lse."""


def errors(hidden: Tensor, weight: Tensor, ids: Tensor, error: Callable[[int], float]) -> Errors:
    """Every logit carries the error of its chain; the log-sum-exp carries the largest of them, and that of its sums."""
    depth, vocabulary = hidden.shape[1], weight.shape[0]
    logits = hidden @ weight.T
    of_logits = (hidden.abs() @ weight.abs().T) * (error(depth) + 2 * depth * FLOAT64_ROUNDOFF) + depth * FLOAT32_TINY
    lse, largest = logits.logsumexp(-1, keepdim=True), logits.max(-1, keepdim=True).values
    # Sum of the exponentials: a fold, a chain, two exponentials a term, and the rounding of their two arguments, which
    # weighs |z - m| exp(z - lse): that sums to no more than the entropy, hence log V. Twice, for terms of second order.
    blocks, ulp = -(-vocabulary // BLOCK), 2 * FLOAT32_ROUNDOFF
    steps = BLOCK.bit_length() + blocks + 4 * MAXIMUM_ULP["exp"] + 2 * math.log(vocabulary) + 4
    logarithm = lse - largest
    of_logarithm = 2 * steps * FLOAT32_ROUNDOFF + (MAXIMUM_ULP["log"] + 1) * ulp * logarithm
    of_lse = of_logits.max(-1, keepdim=True).values + of_logarithm + ulp * (lse.abs() + largest.abs())
    of_exponents = of_logits + of_lse + ulp * (logits - lse).abs() + MAXIMUM_ULP["exp"] * ulp
    place = ids.clamp(min=0)[:, None]
    selected = (logits - largest).abs() + (logits - lse).abs()
    of_selected = (of_logits + of_lse + ulp * selected).gather(1, place)[:, 0]
    return Errors(logits, (logits - lse).exp(), torch.where(ids == IGNORED, 0.0, of_selected), of_exponents)


def exact(arguments: Arguments, dlogprob: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    """The log-probability and both gradients; the rounding of dz to the storage dtype flows into the latter."""
    hidden, weight, ids = arguments["hidden"].double(), arguments["weight"].double(), arguments["ids"]
    dtype, (rows, vocabulary) = arguments["hidden"].dtype, (hidden.shape[0], weight.shape[0])
    found = errors(hidden, weight, ids, error)
    ignored, g = (ids == IGNORED)[:, None], dlogprob.double()[:, None]
    own = (ids[:, None] == torch.arange(vocabulary)).double()
    dz = torch.where(ignored, 0.0, g * (own - found.probabilities))
    # However far the exponents miss, a computed probability stays within 0 and 1, but for rounding.
    of_probability = found.probabilities * torch.expm1(found.exponents.clamp(max=700.0)) + 2 * FLOAT32_TINY
    of_probability = of_probability.clamp(max=1.001)
    of_dz = g.abs() * (of_probability + 4 * FLOAT32_ROUNDOFF * (own - found.probabilities).abs())
    of_dz = torch.where(ignored, 0.0, allowed_error(dz, of_dz + dz.abs(), 0.0, 1, 1, dtype) + of_dz)

    def bounded(left: Tensor, of_left: Tensor, right: Tensor, terms: int) -> Bounded:
        value, carried = left @ right, of_left @ right.abs()
        magnitude = left.abs() @ right.abs() + carried
        return Bounded(exact=value, allowed=carried + allowed_error(value, magnitude, error(terms), terms, 0, dtype))

    return {
        "output": Bounded(exact=logprob64(hidden, weight, ids), allowed=found.selected),
        "hidden": bounded(dz, of_dz, weight, vocabulary),
        "weight": bounded(dz.T, of_dz.T, torch.where(ignored, 0.0, hidden), rows),
    }


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; every row of the launch table by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops.logprob.triton_kernel import TABLE

    return [{"launch": launch} for launch in TABLE[format]]


def _resume(arguments: Arguments, dy: Tensor, sums: dict[str, Tensor] | None, backend: str) -> dict[str, Tensor]:
    hidden, weight, ids = arguments["hidden"], arguments["weight"], arguments["ids"]
    sums = sums or {"weight": torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)}
    selected_logprob_weight_gradient_(sums["weight"], dy, hidden, weight, ids, backend=backend)
    return sums


SPECS = {
    "selected_logprob": OperatorSpec(
        name="selected_logprob",
        row_arguments=("hidden", "ids"),
        shared_arguments=("weight",),
        shape_axes="MKV",
        make=make_arguments,
        exact=exact,
        launches=launches,
        without_gradient=("ids",),
        resume=_resume,
        aliases=("logprob", "log_prob", "logp"),
    )
}
