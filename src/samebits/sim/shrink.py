"""Cutting a failing schedule down: the fewest choices that are not FIFO's and still make it fail.

Halves are left out first, then smaller and smaller pieces, then single choices (delta debugging). Leaving a choice out
moves those behind it, so that a smaller trace is another schedule; it counts only if it fails as well."""

from __future__ import annotations

from collections.abc import Callable

Picks = dict[int, int]


def smallest(picks: Picks, fails: Callable[[Picks], bool], budget: int) -> tuple[Picks, int]:
    """A trace from which no single choice can be left out, as far as the budget of runs goes; and the runs it took.

    `picks` itself is known to fail."""
    kept, runs, pieces = dict(picks), 0, 2
    while len(kept) > 1 and runs < budget:
        numbers = sorted(kept)
        size = max(1, len(numbers) // pieces)
        for start in range(0, len(numbers), size):
            gone = set(numbers[start : start + size])
            tried = {number: index for number, index in kept.items() if number not in gone}
            runs += 1
            if tried and fails(tried):
                kept, pieces = tried, max(2, pieces - 1)
                break
            if runs >= budget:
                break
        else:
            if size == 1:
                break
            pieces = min(len(numbers), pieces * 2)
    return kept, runs
