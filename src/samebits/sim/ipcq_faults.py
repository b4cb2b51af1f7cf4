"""Faults of messages between PEs, as data: which channel, which message of it, what happens, by how much.

An empty plan changes nothing. What was injected is remembered, so that every report can name it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from samebits.sim.topology import PE

KINDS: Final = ("delay", "duplicate", "reorder", "lose", "lose_credit")
Channel = tuple[PE, str]
"""A sender and the direction in which it sends."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the nth message, or the nth credit, of a channel."""

    channel: Channel
    nth: int
    kind: str
    amount: float = 0.0
    """Seconds, of a delay or between a message and its duplicate."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"fault: the kind is {self.kind!r}; allowed: {', '.join(KINDS)}")
        if self.nth < 0 or not self.amount >= 0:
            raise ValueError(f"fault: nth is {self.nth}, amount is {self.amount}; allowed: at least 0")

    def __str__(self) -> str:
        owner, direction = self.channel
        by = f" by {self.amount * 1e9:g} ns" if self.amount else ""
        return f"{self.kind.replace('_', ' ')} {self.nth} of {owner} {direction}{by}"


class FaultPlan:
    """The faults of a run, and which of them happened."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._faults = {(fault.channel, fault.nth, fault.kind == "lose_credit"): fault for fault in faults}
        if len(self._faults) != len(faults):
            raise ValueError("faults: two of them hit the same message; allowed: one a message")
        self.injected: list[Fault] = []

    @classmethod
    def drawn(
        cls, seed: int, channels: Iterable[Channel], kinds: Sequence[str], *, count: int, messages: int, amount: float
    ) -> FaultPlan:
        """`count` faults at places drawn from a seed."""
        source, places = random.Random(f"faults {seed}"), sorted(set(channels))
        chosen: dict[tuple[Channel, int], Fault] = {}
        while len(chosen) < min(count, len(places) * messages):
            channel, nth = source.choice(places), source.randrange(messages)
            chosen.setdefault((channel, nth), Fault(channel, nth, source.choice(list(kinds)), source.random() * amount))
        return cls(list(chosen.values()))

    def message(self, channel: Channel, nth: int) -> Fault | None:
        return self._hit(channel, nth, credit=False)

    def credit_lost(self, channel: Channel, nth: int) -> bool:
        return self._hit(channel, nth, credit=True) is not None

    def _hit(self, channel: Channel, nth: int, *, credit: bool) -> Fault | None:
        fault = self._faults.get((channel, nth, credit))
        if fault is not None:
            self.injected.append(fault)
        return fault

    def told(self) -> str:
        """The end of a report."""
        return f"; injected: {', '.join(map(str, self.injected))}" if self.injected else ""
