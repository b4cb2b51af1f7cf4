"""The adversary: one program under many seeded schedules, each compared with FIFO's, collective by collective.

Seeds are sampled: what holds is said of the schedules that were run, never of all. A failing schedule is cut down to
the few choices that matter, and replays from its seed or from its trace, in this process or another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from samebits.sim.choices import Choice, Policy, Replayed, Trace, picks_of, policy_of, text_of
from samebits.sim.cluster import Cluster, Settings
from samebits.sim.errors import SpawnException
from samebits.sim.journal import Difference, Journal
from samebits.sim.results import digest_of_result
from samebits.sim.scheduler import names_of
from samebits.sim.shrink import smallest

# Runs that may be spent on cutting one failing schedule down.
SHRINK_RUNS: Final = 200


@dataclass(frozen=True, slots=True)
class Program:
    """function(rank, *args) on so many ranks."""

    function: Callable[..., Any]
    ranks: int
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What one schedule came to."""

    trace: Trace
    journal: Journal
    digests: tuple[str, ...]
    """Of what each rank returned."""
    clocks: tuple[float, ...]
    error: str
    """The error text; empty where all ranks ended well."""
    missed: tuple[str, ...] = ()
    """Planned faults that nothing came to."""


def run_once(program: Program, policy: Policy, settings: Settings) -> Seen:
    """One schedule, to its end, good or bad."""
    cluster = Cluster(program.function, program.args, program.ranks, replace(settings, policy=policy))
    error = ""
    try:
        cluster.run()
    except SpawnException as failure:
        error = failure_text(failure)
    found = cluster.outcome()
    digests, missed = map(digest_of_result, found.results), map(str, cluster.faults.missed)
    return Seen(found.trace, found.journal, tuple(digests), tuple(found.clocks), error, tuple(missed))


def failure_text(failure: SpawnException) -> str:
    """What went wrong on which ranks, in one line; what several ranks were told alike is said once."""
    ranks: dict[str, list[int]] = {}
    for rank, error in failure.errors.items():
        ranks.setdefault(f"{type(error).__name__}: {error}", []).append(rank)
    said = [f"{names_of(each)}: {error}" for error, each in ranks.items()]
    return "; ".join(said + [f"rank {rank} was abandoned" for rank in failure.abandoned])


@dataclass(frozen=True, slots=True)
class Finding:
    """A schedule whose bits, times or end are not those of FIFO."""

    seed: int
    policy: str
    why: str
    difference: Difference | None
    trace: str
    """All unusual choices of the schedule that was found."""
    smallest: str
    """The few that still fail."""
    choices: tuple[Choice, ...]
    """Those few, in words."""
    races: str
    """The two events whose order decides, where the program itself races; empty where a collective is at fault."""
    runs: int
    """Runs spent on cutting it down."""


@dataclass(slots=True)
class Exploration:
    """What came of some seeds."""

    reference: Seen
    schedules: set[tuple[int, ...]] = field(default_factory=set)
    """The distinct ones."""
    runs: int = 0
    hand_offs: int = 0
    hashes: set[tuple[str, ...]] = field(default_factory=set)
    finding: Finding | None = None
    missed: tuple[str, ...] = ()
    """Planned faults that no schedule came to."""
    unsteady: str = ""
    """How one schedule, run twice, differs from itself; empty where it does not, or nobody had to ask."""

    @property
    def holds(self) -> bool:
        return self.finding is None and not self.unsteady


def _why(reference: Seen, seen: Seen, name: str = "FIFO") -> tuple[str, Difference | None]:
    """How a schedule differs from the reference: (in words, the first collective); empty where it does not."""
    if seen.error != reference.error:
        return f"it ended with {seen.error or 'no error'}; {name} with {reference.error or 'no error'}", None
    if seen.error:
        return "", None
    difference = reference.journal.difference(seen.journal)
    if difference is not None:
        return str(difference), difference
    for rank, (one, other) in enumerate(zip(reference.digests, seen.digests, strict=True)):
        if one != other:
            return f"rank {rank} returned other bits ({one} != {other}), and every collective gave the same", None
    if seen.clocks != reference.clocks:
        return f"simulated times differ: {seen.clocks} != {reference.clocks}", None
    return "", None


def reference_of(program: Program, settings: Settings | None = None) -> Seen:
    """FIFO's run, with the pauses that every other schedule has."""
    return run_once(program, Replayed({}), settings or Settings())


def explore(
    program: Program,
    seeds: Iterable[int],
    policies: Sequence[str] = ("uniform",),
    *,
    settings: Settings | None = None,
    told: Callable[[Exploration], None] | None = None,
    shrink: bool = True,
) -> Exploration:
    """Every policy under every seed until one schedule differs from FIFO's; `told` hears after each run.

    A program that fails under FIFO, with no fault planned, is not run again: there is nothing to compare with."""
    how = settings or Settings()
    found = Exploration(reference_of(program, how))
    found.missed = found.reference.missed
    if found.reference.error and not how.faults:
        return found
    found.hashes.add(found.reference.digests)
    for seed in seeds:
        for name in policies:
            seen = run_once(program, policy_of(name, seed, program.ranks), how)
            found.runs += 1
            found.hand_offs += seen.trace.hand_offs
            found.schedules.add(seen.trace.key)
            found.hashes.add(seen.digests)
            found.missed = tuple(fault for fault in found.missed if fault in seen.missed)
            why, difference = _why(found.reference, seen)
            if why:
                found.unsteady = _unsteady(program, how, found.reference, seen)
            if why and not found.unsteady:
                found.finding = _finding(program, how, found.reference, seen, seed, name, why, difference, shrink)
            if told is not None:
                told(found)
            if not found.holds:
                return found
    return found


def _unsteady(program: Program, how: Settings, reference: Seen, seen: Seen) -> str:
    """How the reference or a schedule that differs from it differs from itself when it is run again: a clock, memory
    that nobody wrote, a module's variable that the last run left behind. Then schedules are not what decides."""
    for name, one in (("FIFO", reference), ("a schedule", seen)):
        picks = {choice.number: choice.index for choice in one.trace.unusual}
        why, _ = _why(one, run_once(program, Replayed(picks), how), "the first time")
        if why:
            return f"the program does not repeat itself: {name}, run twice: {why}"
    return ""


def replay(program: Program, trace: str, settings: Settings | None = None) -> Seen:
    """The schedule of a trace once more."""
    return run_once(program, Replayed(picks_of(trace)), settings or Settings())


def _finding(
    program: Program,
    how: Settings,
    reference: Seen,
    seen: Seen,
    seed: int,
    policy: str,
    why: str,
    difference: Difference | None,
    shrink: bool,
) -> Finding:
    picks = {choice.number: choice.index for choice in seen.trace.unusual}

    def fails(tried: dict[int, int]) -> bool:
        return bool(_why(reference, run_once(program, Replayed(tried), how))[0])

    few, runs = smallest(picks, fails, SHRINK_RUNS) if shrink else (picks, 0)
    again = run_once(program, Replayed(few), how)
    if shrink:
        why, difference = _why(reference, again)
    choices = tuple(again.trace.unusual)
    return Finding(
        seed, policy, why, difference, text_of(picks), again.trace.text, choices, _races(difference, choices), runs
    )


def _races(difference: Difference | None, choices: Sequence[Choice]) -> str:
    """Where a rank brought other bits to a collective that is first to differ, the program itself races."""
    if difference is None or difference.reference is None or difference.found is None:
        return ""
    one, other = difference.reference, difference.found
    if one.source != other.source:
        return (
            f"the receive from any rank at {one.site} races: rank {one.source}'s message and rank {other.source}'s"
            f" are both on their way"
        )
    if one.taken == other.taken or not choices:
        return ""
    last = choices[-1]
    brings = f"is sent to rank {difference.rank}" if one.what == "receive" else f"rank {difference.rank} brings"
    return (
        f"the program races by itself: {last.alternatives[last.index].what}, against {last.alternatives[0].what}:"
        f" which of them comes first decides what {brings}"
    )
