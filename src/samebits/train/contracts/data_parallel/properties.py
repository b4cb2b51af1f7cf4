"""What data parallelism must do: leave all ranks with the bits of one worker, average, stop together, and end."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference

# A share of the targets and the product with it: two roundings beside those of the sum.
ROUNDINGS_BESIDE_THE_SUM = 2


def all_ranks_have_the_same(call: Call, tolerance: Tolerance) -> str:
    """After each step every rank's loss and weights have the bits of rank 0's, and are numbers."""
    first, *others = call.output
    if not torch.isfinite(first).all():
        return "rank 0 was stopped; allowed: a run of finite numbers"
    for rank, other in enumerate(others, 1):
        wrong = difference(other, first, tolerance, words=f"rank {rank} against rank 0, losses and weights by step")
        if wrong:
            return wrong
    return ""


def as_one_worker(call: Call, tolerance: Tolerance) -> str:
    """Every rank says the losses of one worker on the same global batch, and so are the weights of rank 0."""
    alone = call.reference(*call.arguments.values())
    for rank, log in enumerate(call.output):
        wrong = difference(log[:, 0], alone[:, 0], tolerance, words=f"losses of rank {rank} against one worker's")
        if wrong:
            return wrong
    return difference(call.output[0], alone, tolerance, words="rank 0 against one worker, losses and weights by step")


def a_mean(call: Call, tolerance: Tolerance) -> str:
    """Every rank has the mean over all targets, within the order's bound, and all the same bits."""
    parts, counts = call.arguments["parts_ND"], call.arguments["counts_N"]
    exact, magnitude = call.reference(parts, counts), call.reference(parts.abs(), counts)
    allowed = call.sum_error(len(parts) + ROUNDINGS_BESIDE_THE_SUM) * magnitude
    for rank, found in enumerate(call.output):
        wrong = difference(found, exact, tolerance, allowed=allowed, words=f"mean on rank {rank}")
        if wrong:
            return wrong
        if not torch.equal(found, call.output[0]):
            return f"rank {rank} has another mean than rank 0"
    return ""


def a_nan_stops_all(call: Call, tolerance: Tolerance) -> str:
    """With a NaN in the gradient of any one rank every rank is stopped in the first step; without, none is."""
    if not torch.isfinite(call.output).all():
        return "a run without a NaN was stopped"
    for rank in range(int(call.arguments["size"])):
        found = call.again(poisoned=torch.tensor([rank]))
        going = [place for place, log in enumerate(found) if not torch.isnan(log).all()]
        if going:
            return f"a NaN on rank {rank} did not stop ranks {going}; allowed: all are stopped"
    return ""


def all_end(call: Call, tolerance: Tolerance) -> str:
    """Each of the sums ended on each rank, with its bits."""
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="sums that ended")
