"""What a check of a running program found: at which granularity, where, and in one line what is wrong.

Knows no check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong."""

    granularity: str
    """ "kernel", "block", "transfer", "step", or "config" where no step was made yet."""
    place: str
    """The kernel and its block, the weight's block, the line that copies, or the key of the configuration."""
    contract: str
    """The id of the contract or the obligation that it breaks."""
    message: str

    def __str__(self) -> str:
        return f"{self.contract}: {self.granularity} {self.place}: {self.message}"


@dataclass(slots=True)
class Findings:
    """All of a run, each once: what goes wrong in every step is told where it was first seen."""

    _found: dict[tuple[str, str, str], Finding] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        self._found.setdefault((finding.granularity, finding.place, finding.contract), finding)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)
