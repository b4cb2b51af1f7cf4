"""What an optimizer must do with its configuration: apply every number, at its own step, and refuse what it cannot."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.train.contracts.hyperparams.reference import magnitudes64

NAMES = ("parameter", "first moment", "second moment")
MISSPELT = ("beta2", "weight_decy", "learning_rate")


def applies_the_config(call: Call, tolerance: Tolerance) -> str:
    """Every step of every row is the one that float64 computes with the row's own numbers."""
    expected = call.reference(*call.arguments.values())
    allowed = magnitudes64(*call.arguments.values())
    for place, name in enumerate(NAMES):
        wrong = difference(
            call.output[:, :, place], expected[:, :, place], tolerance, allowed=allowed[:, :, place], words=name
        )
        if wrong:
            return wrong
    return ""


def refuses_unknown_options(call: Call, tolerance: Tolerance) -> str:
    """An option that nothing reads is refused by name: a misspelt one would leave the default in force."""
    for name in MISSPELT:
        try:
            call.again({name: 0.5})
        except (TypeError, ValueError) as error:
            if name not in str(error):
                return f"option {name!r} is refused without its name: {error}"
        else:
            return f"option {name!r} is taken and nothing reads it"
    return ""
