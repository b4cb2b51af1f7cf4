"""The answer to one promise on one function: comparisons one by one, and the outcome they add up to.

Knows neither promises nor functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from samebits.checker.cases import Case
from samebits.checker.driving import CallError
from samebits.records.report import UnjudgedError, Verdict


@dataclass(frozen=True, slots=True)
class Compared:
    """One comparison."""

    case: Case
    difference: str = ""
    """What differs; empty where nothing does."""
    share: float = 0.0
    """How much of the allowed error was used, for a promise that allows one."""
    note: str = ""
    """What a reader of a pass should know about its reach."""
    again: str = ""
    """Command-line options that show the difference again, where the case alone does not."""
    inputs: int = 0
    """How many inputs this comparison stands for, where it is not the case alone: vectors replayed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What all comparisons say together."""

    verdict: Verdict
    cases: int
    detail: str
    again: str = ""
    """For a failure: the command-line options that show it again."""
    raised: bool = False
    """The failure is an exception, not a difference."""
    case: Case | None = None
    """For a failure: the case that shows it."""
    inputs: int = 0
    """Inputs counted by the comparisons themselves."""
    judged: int = 0
    """Different cases of which something was compared; one that cannot try a promise is none."""


def outcome(comparisons: Iterable[Compared]) -> Outcome:
    """Counts comparisons up to the first that differs. None at all is no pass."""
    count, share, inputs = 0, 0.0, 0
    seen: dict[Case, None] = {}  # ordered sets
    notes: dict[str, None] = {}
    try:
        for compared in comparisons:
            count, share, inputs = count + 1, max(share, compared.share), inputs + compared.inputs
            if compared.difference:
                detail = f"{compared.case}: {compared.difference}"
                again = compared.again or compared.case.options
                return Outcome(
                    verdict=Verdict.DOES_NOT_HOLD, cases=count, detail=detail, again=again, case=compared.case
                )
            seen[compared.case] = None
            notes[compared.note] = None
    except CaseError as failed:
        detail = f"{failed.case}: {failed.reason}"
        again = failed.case.options
        return Outcome(
            verdict=Verdict.DOES_NOT_HOLD, cases=count, detail=detail, again=again, raised=True, case=failed.case
        )
    except UnjudgedError as reason:
        return Outcome(verdict=Verdict.COULD_NOT_BE_JUDGED, cases=count, detail=str(reason))
    if not count:
        nothing = "no case of the domain can try this promise"
        return Outcome(verdict=Verdict.COULD_NOT_BE_JUDGED, cases=0, detail=nothing)
    used = f"worst error {share:.3f} of the bound" if share else ""
    detail = "; ".join(filter(None, [_covered(list(seen)), used, *notes]))
    return Outcome(verdict=Verdict.HOLDS, cases=count, detail=detail, inputs=inputs, judged=len(seen))


class CaseError(Exception):
    """A function raised on a case."""

    def __init__(self, case: Case, reason: CallError) -> None:
        super().__init__(str(reason))
        self.case, self.reason = case, reason


def _covered(seen: list[Case]) -> str:
    """The reach of a pass in a few words."""
    shapes = list(dict.fromkeys("x".join(map(str, case.shape)) for case in seen))
    recipes, formats = (list(dict.fromkeys(getattr(case, name) for case in seen)) for name in ("recipe", "format"))
    return f"{' '.join(shapes)}; {' '.join(recipes)}; {' '.join(formats)}"
