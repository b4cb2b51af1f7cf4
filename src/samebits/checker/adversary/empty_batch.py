"""What a function makes of a batch without rows: an evaluation's last one, or an expert that nobody chose.

No row has other bits for it, so it is no part of the verdict; what it does is said."""

from __future__ import annotations

from dataclasses import replace

from samebits.checker.adversary.bench import RaisedError
from samebits.checker.adversary.calling import OUTPUT
from samebits.checker.adversary.probing import Probed
from samebits.checker.adversary.sizes import axes_of, legal
from samebits.checker.adversary.trial import Trial
from samebits.records.report import UnjudgedError


def note_on_no_rows(probed: Probed) -> str:
    """One sentence where it is no empty result of the right width and format, or ""."""
    bench = probed.bench
    letters = bench.form.spec.shape_axes
    sizes = legal(letters, (1, *axes_of(letters).base))
    problem = Trial(sizes=sizes, format=probed.formats[0], rows="normal")
    if bench.problem_refused(problem):
        return ""
    shape, dtype = bench.shapes[problem]
    try:
        output = bench.call(replace(problem, sizes=(0, *sizes[1:]))).results[OUTPUT]
    except (RaisedError, UnjudgedError) as reason:
        return f"not asked: a batch without rows: it {str(reason).partition('; the call')[0]}"
    if (output.bits.shape[1:], output.dtype) == (shape, dtype):
        return ""
    found, empty = f"{output.dtype}{list(output.bits.shape)}", f"{dtype}{[0, *shape]}"
    return f"not asked: a batch without rows: it returned {found}; an empty one is {empty}"
