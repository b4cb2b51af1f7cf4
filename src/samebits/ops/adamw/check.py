"""How a checker drives `adamw_`: a step whose three results lie side by side, exact values, bounds, launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.recipes import make
from samebits.ops.adamw import adamw_
from samebits.ops.adamw.reference import SUBJECT, side_by_side64
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY, allowed_error

TRITON_COLUMNS_AND_WARPS = ((128, 1), (512, 2), (2048, 8))


def side_by_side(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, **changed: float) -> Tensor:
    """The subject of the contract, which changes none of its arguments; `changed` is for planted faults."""
    given = {"step": 3, "lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, **changed}
    updated = [tensor.detach().clone() for tensor in (param, exp_avg, exp_avg_sq)]
    adamw_(updated[0], grad, updated[1], updated[2], **given)  # type: ignore[arg-type]
    return torch.cat([tensor.float() for tensor in updated], -1)


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    dtype = getattr(torch, format)

    def drawn(place: int) -> Tensor:
        return torch.from_numpy(make(recipe, tuple(shape), 4 * seed + place, format))

    # A second moment is a mean of squares; the root of its size is that of the gradients.
    return {
        "param": drawn(0).to(dtype),
        "grad": drawn(1).to(dtype),
        "exp_avg": drawn(2),
        "exp_avg_sq": drawn(3).square(),
    }


def _exact(arguments: Arguments, _: Tensor, __: Callable[[int], float]) -> Mapping[str, Bounded]:
    p, g, m = (arguments[name].double() for name in ("param", "grad", "exp_avg"))
    u, n, width = FLOAT32_ROUNDOFF, SUBJECT, p.shape[-1]
    exact = side_by_side64(*arguments.values())
    updated, first, second = (exact[:, start : start + width] for start in (0, width, 2 * width))
    # Each product has a rounded number and rounds at most twice; then the sum rounds.
    of_first = 4 * u * ((n.beta1 * m).abs() + (n.rest1 * g).abs()) + 2 * FLOAT32_TINY
    of_second = 5 * u * second + 4 * FLOAT32_TINY
    # What is beyond float32 on the way there is infinite, though the result may be a number in float64.
    largest = torch.finfo(torch.float32).max
    of_second = of_second.where((g.square() <= largest) & (second + of_second <= largest), torch.inf)
    d = second.sqrt() * n.root + n.eps
    # sqrt(v + e) - sqrt(v) is at most sqrt(e), and e / (2 sqrt(v)) where v is not tiny.
    of_root = torch.minimum(of_second.sqrt(), of_second / second.sqrt()) + u * second.sqrt()
    of_d = n.root * (of_root + 2 * u * second.sqrt()) + u * n.eps + u * d
    quotient = first / d
    of_quotient = 1.01 * ((of_first + first.abs() * of_d / d) / d + u * quotient.abs())
    of_quotient = of_quotient.where(quotient.abs() + of_quotient <= largest, torch.inf)
    step_size = -n.minus_step_size
    of_updated = step_size * (of_quotient + 2 * u * quotient.abs()) + 2 * u * (p * n.decay).abs() + u * updated.abs()
    dtype = arguments["param"].dtype
    allowed = [
        allowed_error(value, error, 1.0, 1, 0, kind)
        for value, error, kind in (
            (updated, of_updated, dtype),
            (first, of_first, torch.float32),
            (second, of_second, torch.float32),
        )
    ]
    return {"output": Bounded(exact=exact, allowed=torch.cat(allowed, -1))}


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; elements of a program times warps by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops._triton.rows import RowLaunch

    return [{"launch": RowLaunch(columns=columns, warps=warps)} for columns, warps in TRITON_COLUMNS_AND_WARPS]


SPECS = {
    "adamw": OperatorSpec(
        name="adamw",
        row_arguments=("param", "grad", "exp_avg", "exp_avg_sq"),
        shared_arguments=(),
        shape_axes="MH",
        make=_make,
        exact=_exact,
        launches=launches,
        differentiable=False,
    )
}
