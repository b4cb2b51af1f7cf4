"""The one line that shows a finding again: a command where another process can import the function, else Python."""

from __future__ import annotations

from dataclasses import dataclass

from samebits.checker.adversary.origins import Origin
from samebits.checker.adversary.trial import Trial


@dataclass(frozen=True, slots=True)
class Again:
    """How one function was asked about."""

    origin: Origin
    like: str
    backend: str

    def of(self, trial: Trial) -> str:
        """One call."""
        return self._line(f" --case '{trial}'", f"case='{trial}'")

    def of_the_search(self, seed: int, seconds: float) -> str:
        """All calls, where no single one shows it."""
        return self._line(f" --seed {seed} --seconds {seconds:.0f}", f"seed={seed}, seconds={seconds:.0f}")

    def _line(self, options: str, arguments: str) -> str:
        if self.origin.command:
            backend = "" if self.backend == "cpu" else f" --backend {self.backend}"
            return f"samebits check {self.origin.command} --like {self.like}{backend}{options}"
        return f"samebits.check({self.origin.name}, like={self.like!r}, {arguments})"
