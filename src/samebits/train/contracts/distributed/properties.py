"""What a division among ranks must do: lose no number, add each part once in one order, leave no rank without work."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference


def chunks_tile(call: Call, tolerance: Tolerance) -> str:
    """Chunks follow one another from 0 to the length, the first ones longer by one; 7 over 3 are 3, 2 and 2."""
    seven = call.again(length=torch.tensor([7]), ranks=torch.tensor([3]))
    if seven[:, 1].tolist() != [3, 2, 2]:
        return f"7 numbers over 3 ranks are {seven[:, 1].tolist()}; allowed: [3, 2, 2]"
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="start, size and owner")


def every_part_once(call: Call, tolerance: Tolerance) -> str:
    """The sum of each chunk holds every rank's part once, from the chunk's own rank on."""
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="parts of a chunk")


def files_are_dealt(call: Call, tolerance: Tolerance) -> str:
    """Each file has one reader, each rank a file, all ranks make the same updates; fewer files than ranks are refused,
    with both numbers."""
    wrong = difference(call.output, call.reference(*call.arguments.values()), tolerance, words="readers and updates")
    if wrong:
        return wrong
    files = int(call.arguments["files"])
    said = call.refusal(ranks=torch.tensor([files + 1]))
    named = str(files) in said and str(files + 1) in said
    return "" if named else f"{files} files for {files + 1} ranks are taken; {said or 'nothing was said'}"
