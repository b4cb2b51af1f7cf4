"""Rows in two axes, batch and tokens: whether a function takes them, and whether a row's bits then differ.

Part of the verdict only where its code asks how many axes there are. One that goes over its first axis row by row was
written for one; what it does with two is said and not judged."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from samebits.checker.adversary.bench import Bench, RaisedError
from samebits.checker.adversary.calling import OUTPUT
from samebits.checker.adversary.nearness import judge_nearness
from samebits.checker.adversary.situations import FOLDS
from samebits.checker.adversary.sizes import axes_of, legal
from samebits.checker.adversary.trial import Trial
from samebits.numerics.bits import compare

SECONDS = 2.0
SIX_ROWS = ",".join(["normal"] * 6)


def takes_two_axes(bench: Bench, base: Trial, numbers: Mapping[str, float]) -> bool:
    """Whether three times two rows give what they should: a softmax over axis 1 would not."""
    try:
        return judge_nearness(bench, replace(base, rows=SIX_ROWS, fold=2), numbers).difference is None
    except (RaisedError, RuntimeError):
        return False


def note_on_axes(bench: Bench, format: str) -> str:
    """One sentence where two axes change a row's bits, or ""."""
    deadline = time.monotonic() + SECONDS
    letters = bench.form.spec.shape_axes
    for rows, fold in FOLDS:
        trial = Trial(sizes=legal(letters, (rows, *axes_of(letters).base)), format=format, fold=fold)
        if time.monotonic() > deadline:
            break
        try:
            one, two = (bench.call(each).results[OUTPUT] for each in (replace(trial, fold=0), trial))
        except RaisedError:
            continue
        difference = compare(one.bits, two.bits, one.dtype)
        if difference is not None:
            return f"not asked: rows in two axes {list(trial.axes)} have other bits than in one: {difference}"
    return ""
