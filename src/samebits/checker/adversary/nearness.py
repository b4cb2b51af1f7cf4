"""How far a stranger's results are from exact: within what any order of float32 additions may lose, against float64.

No order is asked for: a tree of n terms is at most n - 1 additions high, whatever its shape; a product rounds once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from samebits.checker.adversary.any_formula import low_kinds, with_any_formula
from samebits.checker.adversary.bench import Bench
from samebits.checker.adversary.calling import OUTPUT, tensor_of
from samebits.checker.adversary.ledger import Difference, label
from samebits.checker.adversary.pool import FINITE_KINDS, FINITE_SUM_KINDS, cotangents
from samebits.checker.adversary.trial import Trial, arrangement
from samebits.contracts.orders import UNIT_ROUNDOFF
from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.numerics.bits import hexadecimal

# Steps beyond the additions of a sum: someone else's exponential, root or quotient, and what is multiplied to it.
OTHER_STEPS = 8
TINY = 2.0**-149
FEWEST_RESULTS, ONE_SIDED = 64, 0.95
FLOATS = ("float16", "bfloat16", "float32", "float64")


def any_order(terms: int) -> float:
    """|sum - exact| <= any_order * (sum of magnitudes), for every order of the additions."""
    steps = (terms + OTHER_STEPS) * UNIT_ROUNDOFF
    return steps / (1 - steps) if steps < 0.5 else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Nearness:
    """What one problem showed: how much of the bound was used, or what lies beyond it."""

    share: float
    difference: Difference | None = None


def judge_nearness(bench: Bench, problem: Trial, numbers: Mapping[str, float]) -> Nearness:
    """The rows of a problem that have an exact value, or the ordinary ones that it picks at random and so many; forward
    and, where there are any, all gradients."""
    spec, pool = bench.form.spec, bench.pool(problem)
    kinds = (*FINITE_SUM_KINDS, "subnormal") if spec.exact_specials else FINITE_KINDS
    drawn = problem.pick.startswith("n")
    places = (
        arrangement(problem, pool.kinds).tolist()
        if drawn
        else pool.finite((*kinds, *low_kinds(spec, bench.form.order)))
    )
    odd = problem.shared == "infinite" or (problem.shared == "subnormal" and not spec.exact_specials)
    if not places or odd:
        return Nearness(share=0.0)
    floats = tuple(
        name for name in bench.form.order if pool.arguments[name].is_floating_point() and name not in problem.omit
    )
    wanted = tuple(name for name in floats if name not in spec.without_gradient)
    trial = replace(
        problem,
        sizes=(len(places), *problem.sizes[1:]),
        pick=problem.pick if drawn else _picked(places),
        requires=wanted if bench.differentiable else (),
    )
    answer = bench.call(trial)
    found = {name: tensor_of(array) for name, array in answer.results.items()}
    arguments = _exact_arguments(bench, problem, places, numbers)
    if not found[OUTPUT].is_floating_point() and _is_fraction(spec, arguments, found[OUTPUT]):
        words = f"{label(OUTPUT)}: dtype {answer.results[OUTPUT].dtype}; allowed: {', '.join(FLOATS)}"
        return Nearness(share=0.0, difference=Difference(trial=trial, words=words))
    cotangent = (
        cotangents(problem, pool, answer.results[OUTPUT].bits.shape[1:], found[OUTPUT].dtype)[places]
        if bench.gradients_of(trial)
        else torch.zeros_like(found[OUTPUT])
    )
    cotangent[len(places) - trial.silent :] = 0
    exact = with_any_formula(spec, spec.exact(arguments, cotangent, any_order), arguments, cotangent, any_order)
    share = 0.0
    for name, values in found.items():
        # Gradients that flow back on two ways are each rounded to a narrow format by torch: no sum's bound covers that.
        if name != OUTPUT and problem.format != "float32" and not spec.exact_specials:
            continue
        used, words = _within(values, exact[name], zero_signs=spec.exact_zero_signs and name == OUTPUT)
        if not words and name == OUTPUT and problem.shared == "normal":
            ordinary = torch.tensor([pool.kinds[place] == "normal" for place in places])
            words = one_sided(values[ordinary], exact[name].exact[ordinary])
        if words:
            return Nearness(share=used, difference=Difference(trial=trial, words=f"{label(name)}: {words}"))
        share = max(share, used)
    return Nearness(share=share)


def _is_fraction(spec: OperatorSpec, arguments: Arguments, output: Tensor) -> bool:
    """Whether the operator's own output is no whole number, as the token that was sampled is."""
    return spec.exact(arguments, torch.zeros(output.shape), any_order)[OUTPUT].exact.is_floating_point()


def judge_specials(bench: Bench, problem: Trial) -> Difference | None:
    """Where a sum of products has a NaN in it, every order gives NaN; where an infinity, that or NaN (compensated)."""
    spec, pool = bench.form.spec, bench.pool(problem)
    places = pool.finite(("nan", "one_nan", "infinite")) if spec.exact_specials else []
    if not places:
        return None
    trial = replace(problem, sizes=(len(places), *problem.sizes[1:]), pick=_picked(places))
    found = tensor_of(bench.call(trial).results[OUTPUT]).double()
    exact = spec.exact(_exact_arguments(bench, problem, places, {}), torch.zeros_like(found), any_order)[OUTPUT].exact
    for words, wrong in (
        ("a NaN was lost", exact.isnan() & ~found.isnan()),
        ("an infinity was lost", exact.isinf() & (found != exact) & ~found.isnan()),
    ):
        if bool(wrong.any()):
            at = tuple(int(place[0]) for place in torch.nonzero(wrong, as_tuple=True))
            return Difference(
                trial=trial,
                words=f"{label(OUTPUT)}: {words}: first {list(at)}: {float(found[at])}, exact {float(exact[at])}",
            )
    return None


def one_sided(found: Tensor, exact: Tensor) -> str:
    """Narrow results that are not exact are as often above as below; where they are cut off, all lie on one side.

    Of 64 tosses of a fair coin 61 are alike once in 10^14 times."""
    if found.dtype not in (torch.bfloat16, torch.float16) or found.shape != exact.shape:
        return ""
    value = found.double()
    # What float32 lost on the way is far less than that; results below the normal range are spaced otherwise.
    inexact = (value - exact).abs() > 2.0**-5 * torch.finfo(found.dtype).eps * exact.abs()
    inexact &= value.isfinite() & (exact.abs() > torch.finfo(found.dtype).tiny)
    # Each value once: equal sums are rounded alike.
    is_below = (value.abs() < exact.abs())[inexact].tolist()
    sides = set(zip(exact[inexact].float().tolist(), is_below, strict=True))
    count, below = len(sides), sum(side for _, side in sides)
    most = max(below, count - below)
    if count < FEWEST_RESULTS or most < ONE_SIDED * count:
        return ""
    side = "nearer to 0 than" if most == below else "farther from 0 than"
    return f"{most} of {count} results that are not exact are {side} the exact ones: not rounded to the nearest"


def _picked(places: list[int]) -> str:
    return ",".join(map(str, places)) if len(places) > 1 else f"={places[0]}"


def _exact_arguments(bench: Bench, problem: Trial, places: list[int], numbers: Mapping[str, float]) -> Arguments:
    spec, pool = bench.form.spec, bench.pool(problem)
    index = torch.from_numpy(np.array(places))
    absent = (*bench.form.missing, *problem.omit)
    arguments = {}
    for name, value in pool.arguments.items():
        taken = value[index] if name in spec.row_arguments else value
        arguments[name] = torch.zeros_like(taken) if name in absent else taken
    return arguments | {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}


def _within(found: Tensor, bounded: Bounded, *, zero_signs: bool) -> tuple[float, str]:
    """(share of the bound used, what lies beyond it)."""
    exact, allowed = bounded.exact, bounded.allowed
    if found.shape != exact.shape:
        return 0.0, f"shape {list(found.shape)} != {list(exact.shape)}"
    value = found.double()
    # A few float32 steps of someone else's formula, and one more rounding to a narrow output.
    allowed = allowed + 8 * UNIT_ROUNDOFF * exact.abs() + 4 * TINY
    if found.dtype in (torch.bfloat16, torch.float16):
        allowed = allowed + torch.finfo(found.dtype).eps * (exact.abs() + allowed)
    error = torch.where(allowed.isinf() | exact.isnan(), 0.0, (value - exact).abs())
    outside = ~(error <= allowed) & ~exact.isnan()
    if zero_signs:
        outside |= (exact == 0) & (value == 0) & (exact.signbit() != value.signbit())
    if bool(outside.any()):
        at = tuple(int(place[0]) for place in torch.nonzero(outside, as_tuple=True))
        count = f"{int(outside.sum())} of {outside.numel()} beyond the bound of any order"
        sides = f"{hexadecimal(float(value[at]))}, exact {hexadecimal(float(exact[at]))}"
        return (
            1.0,
            f"{count}; first {list(at)}: {sides}, error {float(error[at]):.3g}, allowed {float(allowed[at]):.3g}",
        )
    used = torch.where(allowed > 0, error / allowed, 0.0)
    return (float(used.max()) if used.numel() else 0.0), ""
