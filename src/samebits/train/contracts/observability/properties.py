"""What a log must do: say what was applied, hide no number that is none, count tokens right; and library code prints
nothing."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference


def nothing_is_printed(call: Call, tolerance: Tolerance) -> str:
    """No line of the library prints, and no run does."""
    return difference(
        call.output, call.reference(*call.arguments.values()), tolerance, words="lines that print, and what was printed"
    )


def says_what_was_applied(call: Call, tolerance: Tolerance) -> str:
    """Every number of every step, and tokens by counting."""
    logged, applied = call.output
    wrong = difference(logged, applied, tolerance, words="the log against what was applied")
    return wrong or difference(logged[:, -1], call.reference(*call.arguments.values()), tolerance, words="tokens")


def a_lost_run_is_stopped(call: Call, tolerance: Tolerance) -> str:
    """The log ends before the step that was lost, with one breach that says so."""
    return difference(
        call.output, call.reference(*call.arguments.values()), tolerance, words="steps, breaches and whether stopped"
    )


def speed_times_time_is_tokens(call: Call, tolerance: Tolerance) -> str:
    """Tokens a second times seconds, against the tokens logged and those counted."""
    counted = call.reference(*call.arguments.values())
    for place, words in enumerate(("tokens a second times seconds", "tokens")):
        wrong = difference(call.output[:, place], counted, tolerance, words=words)
        if wrong:
            return wrong
    return ""
