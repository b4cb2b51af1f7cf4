"""The journal of a run: a digest of what every collective gave to every rank, by group, place in its sequence and rank.

Two runs of one program are compared entry by entry, in the order in which collectives come in a rank's program: the
first entry that differs names the place where they part. Inputs are kept beside outputs, so that a collective that
gives other bits for the same bits can be told from a program that brought others."""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[str, int, int]
"""Group or channel, place in its sequence, rank."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One rank's part of one collective."""

    what: str
    site: str
    taken: str
    """Digest of what it brought."""
    given: str
    """Digest of what it got."""
    source: int = -1
    """Whom it received from, where the program left that open."""
    last: int = -1
    """The one rank that came last, in simulated time; -1 where several did."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first entry in which two runs differ."""

    group: str
    sequence: int
    rank: int
    reference: Entry | None
    found: Entry | None

    def __str__(self) -> str:
        one = self.found or self.reference
        assert one is not None
        where = f"collective {self.sequence} of {self.group}, {one.what} on rank {self.rank} at {one.site}"
        if self.reference is None or self.found is None:
            return f"{where}: in one run only"
        if self.reference.source != self.found.source:
            return (
                f"{where}: received from rank {self.reference.source} in one run and from rank {self.found.source}"
                f" in the other"
            )
        if self.reference.taken != self.found.taken:
            who = "the sender" if one.what == "receive" else f"rank {self.rank}"
            return f"{where}: {who} brought other bits ({self.reference.taken} != {self.found.taken})"
        return f"{where}: same bits in, other bits out ({self.reference.given} != {self.found.given})"


@dataclass(slots=True)
class Journal:
    """Everything that collectives and messages gave."""

    entries: dict[Key, Entry] = field(default_factory=dict)
    entered: list[tuple[str, int, int]] = field(default_factory=list)
    """(group, sequence, rank) in the order of arrival, for tests of the epoch barrier."""

    def difference(self, found: Journal) -> Difference | None:
        """The first in program order (of the lowest rank that sees one); None where all entries agree."""
        keys = [*self.entries, *(key for key in found.entries if key not in self.entries)]
        parted = [key for key in keys if not _same(self.entries.get(key), found.entries.get(key))]
        if not parted:
            return None
        # What a collective brought differs because an earlier one did: a cause comes before its consequences.
        group, sequence, rank = min(parted, key=keys.index)
        return Difference(
            group, sequence, rank, self.entries.get((group, sequence, rank)), found.entries.get((group, sequence, rank))
        )

    def critical(self) -> list[int]:
        """Ranks on which collectives had to wait, in the order of the program; one entry a collective."""
        late = {key[:2]: entry.last for key, entry in self.entries.items() if entry.last >= 0}
        return list(late.values())


def _same(one: Entry | None, other: Entry | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.taken, one.given, one.source) == (other.taken, other.given, other.source)
