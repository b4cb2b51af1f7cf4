"""What accumulation must do: give any cut the bits of the whole, forget the cycle before, and update once a cycle."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.contracts.standard import BITWISE
from samebits.model import Batch
from samebits.model.contracts.small_model import SMALL, cut, joined, model_of
from samebits.train.contracts.gradient_accumulation import examples_of
from samebits.train.data_order import sequences_of


def any_cut_is_the_whole(call: Call, tolerance: Tolerance) -> str:
    """Passes of every size have the bits of one pass over all rows, gradients and loss; and these are the means over
    all targets that float64 computes."""
    rows = len(call.arguments["text"])
    for micro in dict.fromkeys((1, 2, 3, rows)):
        other = call.again(micro=torch.tensor([micro]))
        wrong = difference(other, call.output, BITWISE, words=f"passes of {micro}")
        if wrong:
            return wrong
    return near_float64(call, tolerance)


def near_float64(call: Call, tolerance: Tolerance) -> str:
    """Each tensor's gradient against float64, relative to the largest of all: that of queries and keys is nothing but
    rounding where every sequence has one target. The loss relative to itself."""
    expected = call.reference(*call.arguments.values())
    exact, largest = cut(expected[:-1]), expected[:-1].abs().amax()
    for name, found in cut(call.output[:-1]).items():
        wrong = difference(found, exact[name], tolerance, allowed=largest, words=f"gradient of {name}")
        if wrong:
            return wrong
    return difference(call.output[-1:], expected[-1:], tolerance, allowed=expected[-1:].abs(), words="loss")


def one_pass_is_plain(call: Call, tolerance: Tolerance) -> str:
    """Where one pass takes all rows, the gradients are those of one forward and one backward pass, written out."""
    arguments = call.arguments
    examples = examples_of(arguments["text"], arguments["counts"])
    model = model_of(arguments["weights"]).with_sums()
    targets = torch.cat([torch.from_numpy(each) for _, each in examples])
    with torch.enable_grad():
        hidden = model.hidden(Batch.of([torch.from_numpy(each) for each, _ in examples]))
        losses = -model.logprobs(hidden, targets)
        losses.backward(torch.full_like(losses, 1.0 / int(arguments["counts"].sum())))  # type: ignore[no-untyped-call]
    found = model.gradients()
    plain = joined({name: found[name] for name in cut(arguments["weights"])})
    output = call.again(micro=torch.tensor([len(arguments["text"])]))
    return difference(output[:-1].float(), plain, tolerance, words="one pass")


def cycles_are_apart(call: Call, tolerance: Tolerance) -> str:
    """Other rows in the first cycle leave the second's bits, and change the first's."""
    text, counts = call.arguments["text"], call.arguments["counts"]
    batch = len(text) // 2
    first = torch.from_numpy(sequences_of(1, seed=42, sequences=len(text), batch=batch).copy())
    changed = text.clone()
    changed[first] = (changed[first] + 1) % SMALL.vocab_size
    fewer = counts.clone()
    fewer[first] = 1
    other = call.again(text=changed, counts=fewer)
    wrong = difference(other[1], call.output[1], tolerance, words="the second cycle")
    if not wrong and torch.equal(other[0], call.output[0]):
        return "the first cycle has the same bits with other rows"
    return wrong


def passes_and_updates(call: Call, tolerance: Tolerance) -> str:
    """Every pass of the cut was made, and one update a cycle."""
    return difference(_but(call.output, 1), _but(_wanted(call), 1), tolerance, words="passes and updates")


def clips_once(call: Call, tolerance: Tolerance) -> str:
    """One clipping a cycle, of the total."""
    return difference(call.output[1:2], _wanted(call)[1:2], tolerance, words="clippings")


def _wanted(call: Call) -> Tensor:
    found: Tensor = call.reference(*call.arguments.values())
    return found


def _but(counts: Tensor, place: int) -> Tensor:
    return torch.cat([counts[:place], counts[place + 1 :]])


def means_are_exact(call: Call, tolerance: Tolerance) -> str:
    """The mean of 1, 2, 3 and 4 is 2.5; that of any losses is the exact one, rounded once."""
    of_four = call.again(losses=torch.tensor([[1.0], [2.0], [3.0], [4.0]]), count=torch.tensor([4]))
    if float(of_four) != 2.5:
        return f"the mean of 1, 2, 3 and 4 is {float(of_four)}; allowed: 2.5"
    # The sum is rounded before it is divided: half a unit in the last place more.
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="mean")
