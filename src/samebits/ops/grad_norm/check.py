"""How a checker drives gradient norms: each row a tensor of its own; exact values, bounds, probes, launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, Function, OperatorSpec, Probe
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.probes import Encoding
from samebits.numerics.recipes import make
from samebits.ops.grad_norm import clip_grad_norm_, grad_norm, grad_square_sum
from samebits.ops.grad_norm.reference import clipped_rows64, row_norms64, row_squares64
from samebits.ops.rounding import FLOAT32_ROUNDOFF, FLOAT32_TINY, allowed_error

TRITON_COLUMNS_AND_WARPS = ((128, 1), (512, 4), (2048, 8))
MAX_NORM = 1.0
# The pieces' sums are added in lanes once more: a chain of one, then the fold.
OF_PIECES = 9 * FLOAT32_ROUNDOFF


def row_squares(x: Tensor) -> Tensor:
    """The sum of squares of every row, taken as a tensor of its own."""
    return torch.stack([grad_square_sum([row]) for row in x])


def row_norms(x: Tensor) -> Tensor:
    """The norm of every row, taken as a tensor of its own."""
    return torch.stack([grad_norm([row]) for row in x])


def clipped_rows(x: Tensor, max_norm: float = MAX_NORM) -> Tensor:
    """Every row clipped to a norm of 1, as the gradient of a parameter of its own."""
    parameters = [torch.zeros_like(row) for row in x]
    for parameter, row in zip(parameters, x, strict=True):
        parameter.grad = row.clone()
        clip_grad_norm_([parameter], max_norm)
    return torch.stack([parameter.grad for parameter in parameters if parameter.grad is not None])


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    return {"x": torch.from_numpy(make(recipe, tuple(shape), seed, format)).to(getattr(torch, format))}


def of_norm(width: int, error: Callable[[int], float]) -> float:
    """Relative error of a norm: the sum's, halved by the root; the root's own."""
    return (error(width) + OF_PIECES) / 2 + FLOAT32_ROUNDOFF


def _exact_squares(arguments: Arguments, _: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    exact, width = row_squares64(arguments["x"]), arguments["x"].shape[-1]
    return {
        "output": Bounded(
            exact=exact, allowed=allowed_error(exact, exact, error(width) + OF_PIECES, width, 0, torch.float32)
        )
    }


def _exact_norms(arguments: Arguments, _: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    exact, width = row_norms64(arguments["x"]), arguments["x"].shape[-1]
    allowed = allowed_error(exact, exact, of_norm(width, error), width, 0, torch.float32)
    return {"output": Bounded(exact=exact, allowed=allowed + (width * FLOAT32_TINY) ** 0.5)}


def _exact_clipped(arguments: Arguments, _: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x = arguments["x"]
    exact = clipped_rows64(x)
    # The norm's error; then 1e-6 and its addition, the quotient, the product.
    allowed = allowed_error(exact, exact.abs(), of_norm(x.shape[-1], error), 1, 4, x.dtype)
    return {"output": Bounded(exact=exact, allowed=allowed)}


def _probe(function: Function, terms: int, rows: int, row: int, format: str, device: str) -> Probe:
    """Row `row` holds the numbers, whose squares are added."""
    dtype = getattr(torch, format)
    batch = torch.ones(rows, terms, dtype=dtype, device=device)

    def run(values: np.ndarray) -> float:
        batch[row] = torch.from_numpy(values).to(dtype)
        return float(function(batch)[row])

    return run


def _encoding(terms: int) -> Encoding:
    """Squares, seen as they are."""
    return Encoding(one=1.0, small=2.0**-12, zero=0.0, leaves=lambda x: (x, x), finish=lambda total: total)


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; elements of a program times warps by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops._triton.rows import RowLaunch

    return [{"launch": RowLaunch(columns=columns, warps=warps)} for columns, warps in TRITON_COLUMNS_AND_WARPS]


SPECS = {
    "grad_square_sum": OperatorSpec(
        name="grad_square_sum",
        row_arguments=("x",),
        shared_arguments=(),
        shape_axes="MH",
        make=_make,
        exact=_exact_squares,
        launches=launches,
        differentiable=False,
        probe=_probe,
        encoding=_encoding,
    ),
    "grad_norm": OperatorSpec(
        name="grad_norm",
        row_arguments=("x",),
        shared_arguments=(),
        shape_axes="MH",
        make=_make,
        exact=_exact_norms,
        launches=launches,
        differentiable=False,
    ),
    "clip_grad_norm_": OperatorSpec(
        name="clip_grad_norm_",
        row_arguments=("x",),
        shared_arguments=(),
        shape_axes="MH",
        make=_make,
        exact=_exact_clipped,
        launches=launches,
        differentiable=False,
    ),
}
