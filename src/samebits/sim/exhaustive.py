"""Every schedule of a tiny program that could matter: those that differ only in the order of steps that do not touch
each other are run once.

Two steps of different ranks touch each other if both use the same collective, channel or key of the store. What ranks
share behind the cluster's back (a module's global, say) is not seen; `reduce=False` leaves nothing out."""

from __future__ import annotations

from collections.abc import Iterator

from samebits.sim.choices import Replayed, Trace
from samebits.sim.cluster import Settings
from samebits.sim.explore import Program, Seen, run_once


def schedules(
    program: Program, settings: Settings | None = None, *, reduce: bool = True, most: int = 100_000
) -> Iterator[Seen]:
    """One run after another, FIFO's first. ValueError once there are more than `most`."""
    how, runs = settings or Settings(), 0
    todo: list[tuple[int, ...]] = [()]
    known: set[tuple[int, ...]] = {()}
    while todo:
        prefix = todo.pop()
        runs += 1
        if runs > most:
            raise ValueError(f"exhaustive: more than {most} schedules; allowed: a smaller program")
        seen = run_once(program, Replayed(dict(enumerate(prefix))), how)
        yield seen
        taken = seen.trace.key
        others = _touching(seen.trace) if reduce else _all(seen.trace)
        for number, index in others:
            branch = (*taken[:number], index)
            if branch not in known and index != taken[number]:
                known.add(branch)
                todo.append(branch)


def _all(trace: Trace) -> Iterator[tuple[int, int]]:
    for choice in trace.made:
        yield from ((choice.number, index) for index in range(len(choice.alternatives)))


def _touching(trace: Trace) -> Iterator[tuple[int, int]]:
    """For every step, the last one before it of another rank that it touches: there its rank could have gone first.

    If that rank could not have run there, all that could are tried."""
    for later, step in enumerate(trace.steps):
        for earlier in range(later - 1, -1, -1):
            before = trace.steps[earlier]
            if before.actor == step.actor or not before.touched & step.touched:
                continue
            if before.choice >= 0:
                alternatives = trace.made[before.choice].alternatives
                same = [index for index, each in enumerate(alternatives) if each.actor == step.actor]
                yield from ((before.choice, index) for index in same or range(len(alternatives)))
            break
