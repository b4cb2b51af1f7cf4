"""What merging must do: keep the norm, give back its ends, trim exactly, and follow the plain rule."""

from __future__ import annotations

import numpy as np
import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference


def keeps_the_norm(call: Call, tolerance: Tolerance) -> str:
    """The spherical mean of two unit vectors is one."""
    lengths = call.output.double().square().sum(1).sqrt()
    worst = float((lengths - 1).abs().max())
    return "" if worst <= float(tolerance.value or 0.0) else f"a length is {worst:.3g} off 1"


def the_ends_are_the_models(call: Call, tolerance: Tolerance) -> str:
    """A share of 0 and of 1; +0 and -0 are one number here."""
    for share, name in ((0.0, "first"), (1.0, "second")):
        if not torch.equal(call.again(share=torch.full((1,), share, dtype=torch.float64)), call.arguments[name]):
            return f"a share of {share:g} is not the {name} model"
    return ""


def exactly_trimmed(call: Call, tolerance: Tolerance) -> str:
    """In each row as many are left as the density asks for, or all that were not zero."""
    delta, density = call.arguments["delta"], float(call.arguments["density"][0])
    keep = max(1, int(density * delta.shape[1]))
    for row, (found, before) in enumerate(zip(call.output, delta, strict=True)):
        left, there = int((found != 0).sum()), int((before != 0).sum())
        if left != min(keep, there):
            return f"row {row}: {left} numbers are left, wanted {min(keep, there)}"
    return ""


def the_plain_rule(call: Call, tolerance: Tolerance) -> str:
    """Number by number as it is written down; halves and whole numbers round nowhere."""
    plain = call.reference(**call.arguments)
    return "" if torch.equal(call.output.double(), plain) else "another result than by the plain rule"


def drops_in_the_mean(call: Call, tolerance: Tolerance) -> str:
    """The mean of many drops is the difference itself, within six standard errors of each number."""
    density, draws = float(call.arguments["density"][0]), int(call.arguments["draws"])
    exact = call.reference(*call.arguments.values())
    spread = exact.abs() * float(np.sqrt((1 - density) / density / draws))
    return difference(call.output, exact, tolerance, allowed=6 * spread, words="mean of drops")


def refuses_unlike_shapes(call: Call, tolerance: Tolerance) -> str:
    """A tensor that is a column wider in one model is refused with both shapes; of equal ones the shape is kept."""
    first, second = call.arguments["first"], call.arguments["second"]
    said = call.refusal(second=torch.cat([second, second[:, :1]], 1))
    if not all(str(shape) in said for shape in ((len(first), first.shape[1] + 1), tuple(first.shape))):
        return f"a tensor that is one column wider is merged; {said or 'nothing was said'}"
    # A zero of either sign: that of a sum of two zeros is the chain's matter.
    plain = call.reference(*call.arguments.values())
    return difference(call.output.double() + 0.0, plain + 0.0, tolerance, words="merged tensor")
