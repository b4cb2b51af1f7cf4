"""What a check found: findings with a verdict each, gathered in a report that prints as JSON.

Knows neither how a finding was made nor how it is shown."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = "samebits.report/1"


class Verdict(StrEnum):
    """The only three answers. What was not run is never a pass."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    COULD_NOT_BE_JUDGED = "could not be judged"


# Documented for scripts: the worst verdict decides.
EXIT_CODES = {Verdict.HOLDS: 0, Verdict.DOES_NOT_HOLD: 1, Verdict.COULD_NOT_BE_JUDGED: 3}


class UnjudgedError(Exception):
    """Neither answer can be given here; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One promise of one subject on one backend, judged."""

    subject: str
    promise: str
    backend: str
    verdict: Verdict
    cases: int
    """How many comparisons stand behind the verdict."""
    detail: str = ""
    """For a failure: the first difference. For a pass: what was covered."""
    reproduce: str = ""
    """The command that shows a failure again."""
    obligation: str = ""
    """The contract's id, where a contract asked for it."""
    faults_caught: int = 0
    faults_planted: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.verdict is Verdict.HOLDS and self.cases < 1:
            raise ValueError(f"{self.subject}: {self.promise} cannot hold on cases={self.cases}; at least 1 is needed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All findings of one run, with what they were found on."""

    findings: tuple[Finding, ...]
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a reader should know about the reach of the findings."""
    coverage: dict[str, Any] = field(default_factory=dict)
    """What was tried, counted, where inputs were searched for."""

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings; an empty report judged nothing."""
        verdicts = {finding.verdict for finding in self.findings}
        if Verdict.DOES_NOT_HOLD in verdicts:
            return Verdict.DOES_NOT_HOLD
        if not verdicts or Verdict.COULD_NOT_BE_JUDGED in verdicts:
            return Verdict.COULD_NOT_BE_JUDGED
        return Verdict.HOLDS

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def counts(self) -> dict[str, int]:
        found = Counter(finding.verdict for finding in self.findings)
        return {str(verdict): found.get(verdict, 0) for verdict in Verdict}

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "verdict": str(self.verdict),
            "counts": self.counts(),
            "environment": self.environment,
            "findings": [asdict(finding) for finding in self.findings],
            "notes": list(self.notes),
            "coverage": self.coverage,
        }

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)
