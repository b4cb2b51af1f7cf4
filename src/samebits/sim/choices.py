"""Choices: what could happen next, who picks, and the record of what was picked, from which a run can be replayed.

Alternatives come in FIFO order: ready ranks from the lowest, then events from the soonest, then ranks that only poll.
So choice 0 is FIFO's, and a trace needs to name only the choices that were not 0."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class Alternative:
    """One thing that could happen next."""

    actor: int
    """The rank that would run, or whose event it is; -1: nobody's."""
    does: str
    """What happens; or what the rank has just waited for."""
    site: str = ""
    """Where the rank goes on; empty for an event."""

    @property
    def what(self) -> str:
        """In words, for reports."""
        return f"rank {self.actor} after {self.does} at {self.site}" if self.site else self.does


class Policy(Protocol):
    """Picks one of several alternatives."""

    pauses: bool
    """Whether ranks also give the baton away before they arrive at a collective and after it is complete."""

    def choose(self, alternatives: Sequence[Alternative]) -> int: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice that was made where there were several alternatives."""

    number: int
    index: int
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        taken, usual = self.alternatives[self.index], self.alternatives[0]
        return f"choice {self.number}: {taken.what}, before {usual.what}"


@dataclass(frozen=True, slots=True)
class Step:
    """What happened between two choices: who acted, and on what."""

    actor: int
    touched: frozenset[str]
    """Collectives, channels and keys that it used."""
    choice: int
    """The number of the choice that led to it; -1 where there was only one alternative."""


@dataclass(slots=True)
class Trace:
    """All choices of a run, and what came of each."""

    made: list[Choice] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    hand_offs: int = 0

    @property
    def unusual(self) -> list[Choice]:
        """The choices that FIFO would not have made."""
        return [choice for choice in self.made if choice.index]

    @property
    def text(self) -> str:
        """From which `Replayed` makes the same run: the unusual choices as number:index."""
        return text_of({choice.number: choice.index for choice in self.unusual})

    @property
    def key(self) -> tuple[int, ...]:
        """Equal for equal schedules."""
        return tuple(choice.index for choice in self.made)


def text_of(picks: Mapping[int, int]) -> str:
    return " ".join(f"{number}:{index}" for number, index in sorted(picks.items())) or "fifo"


def picks_of(text: str) -> dict[int, int]:
    """The inverse of `text_of`. ValueError for another text."""
    if text.strip() in ("", "fifo"):
        return {}
    if not re.fullmatch(r"\s*\d{1,9}:\d{1,9}(\s+\d{1,9}:\d{1,9})*\s*", text):
        raise ValueError(f"a trace is {text!r:.60}; allowed: 'fifo', or pairs like '3:1 7:2' (choice:index)")
    return {int(number): int(index) for number, index in (pair.split(":") for pair in text.split())}


class Fifo:
    """The lowest ready rank, else the soonest event. Ranks run until they have to wait."""

    pauses = False

    def choose(self, alternatives: Sequence[Alternative]) -> int:
        return 0


class Uniform:
    """Any alternative, all equally likely."""

    pauses = True

    def __init__(self, seed: int, ranks: int) -> None:
        self._random = random.Random(f"uniform {seed}")

    def choose(self, alternatives: Sequence[Alternative]) -> int:
        return self._random.randrange(len(alternatives))


class Priority:
    """Ranks in a random order of priority, of which whoever runs is moved to the end at a few random choices."""

    pauses = True

    def __init__(self, seed: int, ranks: int) -> None:
        self._random = random.Random(f"priority {seed}")
        self._order = [-1, *range(ranks)]
        self._random.shuffle(self._order)
        # How many choices there will be is not known, so that change points are drawn as the run goes on.
        self._chance = 0.5 ** self._random.randint(3, 6)

    def choose(self, alternatives: Sequence[Alternative]) -> int:
        best = min(range(len(alternatives)), key=lambda place: (self._order.index(alternatives[place].actor), place))
        if self._random.random() < self._chance:
            moved = alternatives[best].actor
            self._order.remove(moved)
            self._order.append(moved)
        return best


class Starve:
    """One rank, picked by the seed, runs only when nobody else can; the others in random order."""

    pauses = True

    def __init__(self, seed: int, ranks: int) -> None:
        self._random = random.Random(f"starve {seed}")
        self._victim = seed % ranks

    def choose(self, alternatives: Sequence[Alternative]) -> int:
        others = [place for place, each in enumerate(alternatives) if each.actor != self._victim]
        return self._random.choice(others or range(len(alternatives)))


class Replayed:
    """The choices of a trace, and FIFO's where the trace says nothing."""

    pauses = True

    def __init__(self, picks: Mapping[int, int]) -> None:
        self._picks, self._made = picks, -1
        self.unmet = dict(picks)
        """Those that the run had no such choice for, so far."""

    def choose(self, alternatives: Sequence[Alternative]) -> int:
        self._made += 1
        picked = self._picks.get(self._made, 0)
        if picked < len(alternatives):
            self.unmet.pop(self._made, None)
        return min(picked, len(alternatives) - 1)


POLICIES: Final[dict[str, Callable[[int, int], Policy]]] = {
    "fifo": lambda seed, ranks: Fifo(),
    "uniform": Uniform,
    "priority": Priority,
    "starve": Starve,
}


def policy_of(name: str, seed: int, ranks: int) -> Policy:
    """A policy by name; ValueError for another name."""
    if name not in POLICIES:
        raise ValueError(f"policy is {name!r}; allowed: {', '.join(POLICIES)}")
    return POLICIES[name](seed, ranks)
