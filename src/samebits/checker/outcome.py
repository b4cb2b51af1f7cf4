"""The answer to one promise on one function: comparisons one by one, and the outcome they add up to.

Knows neither promises nor functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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
    recipes: dict[str, int] = field(default_factory=dict)
    """The same by recipe."""


class Tally:
    """Comparisons, counted as they come in up to the first that differs."""

    def __init__(self, comparisons: Iterable[Compared]) -> None:
        self._comparisons = iter(comparisons)
        self._count, self._share, self._inputs = 0, 0.0, 0
        self._seen: dict[Case, None] = {}  # ordered sets
        self._notes: dict[str, None] = {}

    @property
    def judged(self) -> int:
        """Different cases of which something was compared."""
        return len(self._seen)

    def count(self, pause: Callable[[], bool] = lambda: False) -> Outcome | None:
        """Goes on until the comparisons end or one differs; None: `pause` said to stop for now."""
        try:
            for compared in self._comparisons:
                self._count, self._inputs = self._count + 1, self._inputs + compared.inputs
                self._share = max(self._share, compared.share)
                if compared.difference:
                    return self._failed(compared.case, compared.difference, compared.again)
                self._seen[compared.case] = None
                self._notes[compared.note] = None
                if pause():
                    return None
        except CaseError as failed:
            return self._failed(failed.case, str(failed.reason), raised=True)
        except UnjudgedError as reason:
            return Outcome(verdict=Verdict.COULD_NOT_BE_JUDGED, cases=self._count, detail=str(reason))
        return self._passed()

    def _failed(self, case: Case, reason: str, again: str = "", raised: bool = False) -> Outcome:
        detail, again = f"{case}: {reason}", again or case.options
        return Outcome(
            verdict=Verdict.DOES_NOT_HOLD, cases=self._count, detail=detail, again=again, raised=raised, case=case
        )

    def _passed(self) -> Outcome:
        """None at all is no pass."""
        if not self._count:
            nothing = "no case of the domain can try this promise"
            return Outcome(verdict=Verdict.COULD_NOT_BE_JUDGED, cases=0, detail=nothing)
        used = f"worst error {self._share:.3f} of the bound" if self._share else ""
        detail = "; ".join(filter(None, [_covered(list(self._seen)), used, *self._notes]))
        recipes = dict(sorted(Counter(case.recipe for case in self._seen).items()))
        return Outcome(
            verdict=Verdict.HOLDS,
            cases=self._count,
            detail=detail,
            inputs=self._inputs,
            judged=self.judged,
            recipes=recipes,
        )


def outcome(comparisons: Iterable[Compared]) -> Outcome:
    """What all comparisons say together."""
    found = Tally(comparisons).count()
    assert found is not None  # nothing pauses it
    return found


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
