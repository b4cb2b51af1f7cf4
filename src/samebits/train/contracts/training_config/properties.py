"""What a validator of plans must do: refuse exactly those that break an obligation, and name it."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference


def refuses_exactly(call: Call, tolerance: Tolerance, *, number: int) -> str:
    """Each plan is refused by CFG-OB<number> where it breaks it, and nowhere else."""
    place = number - 1
    expected = call.reference(*call.arguments.values())
    return difference(call.output[:, place], expected[:, place], tolerance, words=f"refused by CFG-OB{number}")


def names_the_least_epochs(call: Call, tolerance: Tolerance) -> str:
    """A plan that does not reach its steps is refused, and told how many epochs would."""
    expected = call.reference(*call.arguments.values())
    refused = difference(call.output[:, 0], expected[:, 0], tolerance, words="refused by CFG-OB1")
    return refused or difference(call.output[:, -1], expected[:, -1], tolerance, words="epochs asked for")
