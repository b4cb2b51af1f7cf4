"""What checkpoints must do: repeat a run, tell seeds apart, resume as if nothing had been, and leave files alone."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference

OTHER_SEEDS = 4


def repeats_itself(call: Call, tolerance: Tolerance) -> str:
    """The same run once more: every loss, weight and moment."""
    return difference(call.again(), call.output, tolerance, words="the same run again")


def seeds_differ(call: Call, tolerance: Tolerance) -> str:
    """Of some other seeds one gives another loss: a few rows may meet in the same order by chance, not every time."""
    steps, seed = int(call.arguments["steps"]), int(call.arguments["seed"])
    for other in range(1, OTHER_SEEDS + 1):
        found = call.again(seed=torch.tensor([seed + other]))
        if difference(found[:steps], call.output[:steps], tolerance):
            return ""
    return f"seeds {seed} to {seed + OTHER_SEEDS} give the same losses"


def goes_on_as_if_nothing_had_been(call: Call, tolerance: Tolerance) -> str:
    """Losses, weights, moments and the optimizer's count are those of the run without interruption."""
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="the resumed run")


def holds_every_moment(call: Call, tolerance: Tolerance) -> str:
    """Both moments of every tensor, whole, and none of them 0 after a step; every weight."""
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="tensors and numbers")


def stands_where_it_stopped(call: Call, tolerance: Tolerance) -> str:
    """The position is that of the data, and one that does not fit is refused by name."""
    wrong = difference(call.output, call.reference(*call.arguments.values()), tolerance, words="epoch and sequence")
    said = call.refusal({"moved": 1})
    if not wrong and "position.sequence" not in said:
        return f"a position that is one sequence off is taken; {said or 'nothing was said'}"
    return wrong


def leaves_its_source(call: Call, tolerance: Tolerance) -> str:
    """Every byte of every file of the step that was resumed from."""
    return difference(call.output[1], call.output[0], tolerance, words="files after the resumed run")
