"""What must be known of a function before it is judged: which operator it is like, its formats, its gradients.

A format that it refuses altogether is not judged; a function that refuses everything could not be judged at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from samebits.checker.adversary.bench import Bench, RaisedError
from samebits.checker.adversary.calling import NO_TENSOR, OUTPUT, tensor_of
from samebits.checker.adversary.likeness import EPSILON_NAMES, Form
from samebits.checker.adversary.nearness import judge_nearness
from samebits.checker.adversary.processes import Stranger
from samebits.checker.adversary.sizes import Cost, axes_of, legal
from samebits.checker.adversary.trial import Trial
from samebits.checker.adversary.two_axes import takes_two_axes
from samebits.records.report import UnjudgedError

ROWS = (5, 1, 16, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """A bench that works, and what was learnt on the way."""

    bench: Bench
    formats: tuple[str, ...]
    with_gradient: tuple[str, ...]
    numbers: dict[str, float]
    two_axes: bool
    """It takes rows in two axes."""
    notes: tuple[str, ...]


def probe(stranger: Stranger, forms: Sequence[Form], formats: Sequence[str], name: str) -> Probed:
    """Tries small calls. Several forms: the one whose results are those of its operator."""
    worker = stranger.worker()
    problems: list[str] = []
    fitting: list[Probed] = []
    for form in forms:
        worker.loaded.clear()  # arguments have other names for another operator
        bench = Bench(stranger=stranger, form=form, worker=worker, cost=Cost(form.spec.shape_axes))
        try:
            probed = _probed(bench, formats)
        except UnjudgedError as reason:
            if len(forms) == 1 or not str(reason).startswith("raised"):
                raise
            problems.append(str(reason))
            continue
        if len(forms) == 1 or _is_like(probed):
            fitting.append(probed)
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(form.spec.name for form in (probed.bench.form for probed in fitting)) or ", ".join(
        form.spec.name for form in forms
    )
    raise ValueError(f"{name!r}: cannot infer a contract from its signature; pass `like` (--like): {known}")


def _probed(bench: Bench, formats: Sequence[str]) -> Probed:
    spec, notes = bench.form.spec, []
    taken: list[str] = []
    reasons: dict[str, str] = {}
    for format in formats:
        reason = _refuses(bench, format)
        if reason:
            reasons[format] = reason
        else:
            taken.append(format)
    if not taken:
        raise UnjudgedError(next(iter(reasons.values())))
    notes += [f"{format}: {reason}" for format, reason in reasons.items()]
    base = _base(bench, taken[0])
    if any(not value.is_floating_point() and bool((value < 0).any()) for value in _unclamped(bench, base).values()):
        bench.signed_ids = _ignores(bench, base)
        if not bench.signed_ids:
            notes.append("ids below zero, which mark rows to be ignored: it does not take them as that")
    wanted, why = _gradients(bench, base) if spec.differentiable else ((), "")
    if why:
        notes.append(f"gradients, for {why}")
    numbers = _numbers(bench, base)
    return Probed(
        bench=bench,
        formats=tuple(taken),
        with_gradient=wanted,
        numbers=numbers,
        two_axes=takes_two_axes(bench, base, numbers),
        notes=tuple(notes),
    )


def _base(bench: Bench, format: str) -> Trial:
    letters = bench.form.spec.shape_axes
    return Trial(sizes=legal(letters, (ROWS[0], *axes_of(letters).base)), format=format, rows="normal")


def _refuses(bench: Bench, format: str) -> str:
    """Why no number of rows in this format gives a Tensor, at ordinary sizes and at round ones; or ""."""
    base, reason = _base(bench, format), ""
    round_sizes = tuple(-(-size // 64) * 64 for size in base.sizes[1:])
    for tail in (base.sizes[1:], round_sizes):
        for count in ROWS:
            try:
                bench.call(replace(base, sizes=legal(bench.form.spec.shape_axes, (count, *tail))))
            except RaisedError as error:
                # It runs: the search will say what is wrong with what comes back. A pair is no mistake of its author's.
                if str(error).startswith("returned") and not str(error).endswith(NO_TENSOR):
                    return ""
                reason = reason or str(error)
            else:
                return ""
    return reason


def _unclamped(bench: Bench, base: Trial) -> dict[str, Tensor]:
    made = bench.form.spec.make((8, *base.sizes[1:]), "normal", base.format, base.seed)
    return {name: value for name, value in made.items() if not value.is_floating_point()}


def _ignores(bench: Bench, base: Trial) -> bool:
    """Whether a row with a negative id gives exactly zero, as our operators do."""
    bench.signed_ids = True
    bench.pools.clear()
    bench.worker.loaded.clear()
    trial = replace(base, seed=base.seed + 1, rows="normal,normal,normal,normal,normal,normal")
    pool = bench.pool(trial)
    marked = [bool((value < 0).flatten()[4]) for value in pool.arguments.values() if not value.is_floating_point()]
    try:
        found = tensor_of(bench.call(replace(trial, sizes=(1, *trial.sizes[1:]), pick="=4")).results[OUTPUT])
        return any(marked) and bool((found == 0).all())
    except RaisedError:
        return False
    finally:
        bench.pools.clear()
        bench.worker.loaded.clear()


def _gradients(bench: Bench, base: Trial) -> tuple[tuple[str, ...], str]:
    """Arguments that gradients flow back into; or why there are none: the output carries none, or what requires one is
    refused for every number of rows."""
    spec = bench.form.spec
    pool = bench.pool(base)
    wanted = tuple(
        name
        for name in bench.form.order
        if pool.arguments[name].is_floating_point() and name not in spec.without_gradient
    )
    reason = ""
    for count in ROWS:
        try:
            answer = bench.call(replace(base, sizes=(count, *base.sizes[1:]), requires=wanted))
        except RaisedError as error:
            if str(error).startswith("returned"):
                return wanted, ""
            reason = reason or str(error)
            continue
        bench.differentiable, bench.own_backward = answer.differentiable, answer.own_backward
        return (wanted, "") if answer.differentiable else ((), "its output has none")
    return (), f"it takes no argument that requires one: {reason}"


def _numbers(bench: Bench, base: Trial) -> dict[str, float]:
    """Numbers that the function fixed for itself and its signature does not show: the first that fits its results."""
    own = bench.form.spec.own_numbers
    if not own or any(name in bench.form.scalars for name in (*own, *EPSILON_NAMES)):
        return {}
    (name, values), *_ = own.items()
    differentiable, bench.differentiable = bench.differentiable, False
    try:
        # Rows whose mean square is no larger than the number show it.
        small = replace(base, rows="subnormal,almost_copy,normal")
        for value in values:
            if all(judge_nearness(bench, each, {name: value}).difference is None for each in (base, small)):
                return {name: value}
    except RaisedError:
        return {}
    finally:
        bench.differentiable = differentiable
    return {}


def _is_like(probed: Probed) -> bool:
    base = _base(probed.bench, probed.formats[0])
    try:
        return judge_nearness(probed.bench, replace(base, rows="mixed"), probed.numbers).difference is None
    except (RaisedError, KeyError, RuntimeError):
        return False
