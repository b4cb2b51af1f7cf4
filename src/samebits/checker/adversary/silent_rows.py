"""Whether a sum over rows, a weight's gradient, depends on how many rows there are: rows of zeros behind add nothing.

Said and not judged: a row's bits are what a function promises, and a sum over rows has the order of its rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from samebits.checker.adversary.bench import Bench, RaisedError
from samebits.checker.adversary.frames import Array
from samebits.checker.adversary.probing import Probed
from samebits.checker.adversary.sizes import axes_of, legal
from samebits.checker.adversary.trial import Trial
from samebits.numerics.bits import compare

SECONDS = 3.0
ROWS = (2, 5, 16, 33, 64, 100, 200, 300)
BEHIND = (1, 29, 128)
MOST_ROWS = 1024
SIGN_BITS = {"float32": 31, "bfloat16": 15, "float16": 15}


def note_on_sums(probed: Probed, named: Sequence[int]) -> str:
    """One sentence where a gradient changes, or ""; `named` are sizes that the function's own code names."""
    bench = probed.bench
    shared = tuple(name for name in probed.with_gradient if name not in bench.form.spec.row_arguments)
    if not shared:
        return ""
    deadline = time.monotonic() + SECONDS
    for trial, behind in _trials(bench, probed.formats[0], shared, named):
        if time.monotonic() > deadline:
            return ""
        longer = replace(trial, sizes=(trial.count + behind, *trial.sizes[1:]), pick=f"{trial.pick}z{behind}")
        try:
            few, more = bench.call(trial).results, bench.call(longer).results
        except RaisedError:
            continue
        for name in shared:
            difference = compare(_unsigned(few[name]), _unsigned(more[name]), few[name].dtype)
            if difference is not None:
                return (
                    f"not asked: the gradient of {name}, a sum over rows, depends on how many rows there are: "
                    f"{trial.count} rows, and {behind} of zeros behind them: {difference}"
                )
    return ""


def _trials(bench: Bench, format: str, shared: tuple[str, ...], named: Sequence[int]) -> Iterator[tuple[Trial, int]]:
    letters = bench.form.spec.shape_axes
    tail = axes_of(letters).base
    for place, rows in enumerate(dict.fromkeys((*ROWS, *(each for each in named if 1 < each <= MOST_ROWS)))):
        sizes = legal(letters, (rows, *tail))
        trial = Trial(sizes=sizes, format=format, pick=f"n{place + 1}", requires=shared)
        yield from ((trial, behind) for behind in BEHIND)


def _unsigned(array: Array) -> np.ndarray:
    """A sum of nothing but zeros may have either sign."""
    negative_zero = array.bits.dtype.type(1 << SIGN_BITS[array.dtype])
    return np.where(array.bits == negative_zero, array.bits.dtype.type(0), array.bits)
