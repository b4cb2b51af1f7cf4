"""Faults as data: what happens to which rank at which of its waits or collectives. An empty plan changes nothing.

A plan is made of text like `crash@2:5` (rank 2 at its wait 5), `late@1:3:0.25` (a quarter of a simulated second late
from wait 3 on), `slow@1:1:2.0` (its own work takes twice as long), `skip@0:4` and `swap@0:4` (its collective 4 is left
out, or comes after its collective 5). Waits and collectives are counted from 1."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from samebits.sim.errors import InjectedCrashError

if TYPE_CHECKING:
    from samebits.sim.rank import Rank

KINDS: Final = ("crash", "late", "slow", "skip", "swap")
_AMOUNTS: Final = {"late": "simulated seconds", "slow": "a factor"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    rank: int
    nth: int
    """Which wait (crash, late, slow) or collective (skip, swap) of that rank, counted from 1."""
    amount: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a fault's kind is {self.kind!r}; allowed: {', '.join(KINDS)}")
        if self.rank < 0 or self.nth < 1 or not 0 <= self.amount < float("inf"):
            raise ValueError(
                f"{self.kind}: rank {self.rank}, place {self.nth}, amount {self.amount}; allowed: rank and amount >= 0,"
                f" place >= 1"
            )

    def __str__(self) -> str:
        amount = f":{self.amount:g}" if self.kind in _AMOUNTS else ""
        return f"{self.kind}@{self.rank}:{self.nth}{amount}"

    @classmethod
    def read(cls, text: str) -> Fault:
        """From `kind@rank:place[:amount]`; ValueError for anything else."""
        found = re.fullmatch(r"([a-z]+)@(\d{1,6}):(\d{1,9})(?::(\d{1,9}(?:\.\d{1,12})?))?", text)
        if not found or (found[4] is None) == (found[1] in _AMOUNTS):
            raise ValueError(
                f"a fault is {text!r:.60}; allowed: crash@RANK:WAIT, late@RANK:WAIT:SECONDS,"
                f" slow@RANK:WAIT:FACTOR, skip@RANK:COLLECTIVE, swap@RANK:COLLECTIVE"
            )
        return cls(found[1], int(found[2]), int(found[3]), float(found[4] or 0))


class Faults:
    """A plan at work."""

    def __init__(self, plan: Iterable[Fault] = ()) -> None:
        self.plan = tuple(plan)
        self.happened: list[Fault] = []
        self._at = {(fault.rank, fault.nth, fault.kind): fault for fault in self.plan}

    def _take(self, rank: Rank, nth: int, kind: str) -> Fault | None:
        fault = self._at.get((rank.number, nth, kind)) if self._at else None
        if fault is not None:
            self.happened.append(fault)
        return fault

    def at_wait(self, rank: Rank) -> None:
        """What happens to a rank that comes to a wait."""
        if not self._at:
            return
        if late := self._take(rank, rank.waits, "late"):
            rank.clock += late.amount
        if slow := self._take(rank, rank.waits, "slow"):
            rank.slowness = slow.amount
        if crash := self._take(rank, rank.waits, "crash"):
            raise InjectedCrashError(f"injected fault {crash}: rank {rank.number} crashes at its wait {rank.waits}")

    def skips(self, rank: Rank, nth: int) -> bool:
        return self._take(rank, nth, "skip") is not None

    def swaps(self, rank: Rank, nth: int) -> bool:
        return self._take(rank, nth, "swap") is not None

    @property
    def missed(self) -> list[Fault]:
        """Those that nothing came to: no such wait, no such collective."""
        return [fault for fault in self.plan if fault not in self.happened]

    @property
    def told(self) -> str:
        """For a report: what was injected so far."""
        return f"; injected: {', '.join(map(str, self.happened))}" if self.happened else ""
