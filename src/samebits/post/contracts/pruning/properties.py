"""What pruning must do: the stated share, by score and index, and nothing to what is kept."""

from __future__ import annotations

import math

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.numerics.bits import same_bits
from samebits.post.contracts.pruning import cut


def exact_share(call: Call, tolerance: Tolerance) -> str:
    """In every row exactly floor(share * K) numbers are +0 that the weight had otherwise, or had as zeros."""
    weight, share = call.arguments["weight"], float(call.arguments["share"][0])
    wanted = math.floor(share * weight.shape[1])
    gone = (call.output == 0).sum(1)
    zeros = (weight == 0).sum(1)
    for row, (found, before) in enumerate(zip(gone.tolist(), zeros.tolist(), strict=True)):
        # Zeros of the weight have the least scores: they are the first to go.
        if found != max(wanted, before):
            return f"row {row}: {found} zeros of {weight.shape[1]}, wanted {max(wanted, before)}"
    return ""


def least_go_first(call: Call, tolerance: Tolerance) -> str:
    """The plain rule, number by number, gives the same matrix."""
    plain = call.reference(**call.arguments)
    return "" if torch.equal(call.output.double(), plain) else "another set of numbers is kept than by the plain rule"


def the_ends(call: Call, tolerance: Tolerance) -> str:
    """A share of 0 changes nothing, a share of 1 leaves zeros."""
    weight = call.arguments["weight"]
    nothing = call.again(share=torch.zeros(1, dtype=torch.float64))
    everything = call.again(share=torch.ones(1, dtype=torch.float64))
    if not same_bits(nothing, weight):
        return "a share of 0 changes the weight"
    return "" if same_bits(everything, torch.zeros_like(weight)) else "a share of 1 leaves something"


def quieter_goes(call: Call, tolerance: Tolerance) -> str:
    """Of equal weights those with the quieter inputs go."""
    weight = torch.ones_like(call.arguments["weight"])
    found = call.again(weight=weight, share=torch.full((1,), 0.5, dtype=torch.float64))
    order = torch.sort(call.arguments["squares"], stable=True).indices[: weight.shape[1] // 2]
    wanted = weight.clone()
    wanted[:, order] = 0
    return "" if same_bits(found, wanted) else "among equal weights another input's goes than the quietest"


def kept_keeps_its_bits(call: Call, tolerance: Tolerance) -> str:
    weight, found = call.arguments["weight"], call.output
    kept = found != 0
    return "" if same_bits(found[kept], weight[kept]) else "a kept number has other bits"


def embedding_and_head_are_left_alone(call: Call, tolerance: Tolerance) -> str:
    """Every tensor outside the layers and every norm keeps its bits, and the layers' matrices are those of the plain
    rule."""
    for before, after in zip(call.arguments["weights"], call.output, strict=True):
        found = cut(after)
        for name, weight in cut(before).items():
            if ".layers." not in name or "norm" in name:
                wrong = difference(found[name], weight, tolerance, words=name)
                if wrong:
                    return wrong
    plain = call.reference(*call.arguments.values())
    return difference(call.output.double() + 0.0, plain + 0.0, tolerance, words="the whole model")
