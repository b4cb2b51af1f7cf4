"""How a checker drives `matmul` and `linear`: inputs, exact values and bounds, probes and launch numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, Function, OperatorSpec, Probe
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.recipes import make
from samebits.ops.matmul import matmul_accumulate_
from samebits.ops.matmul.reference import linear64, matmul64
from samebits.ops.rounding import allowed_error


def tensor(recipe: str, shape: Sequence[int], seed: int, format: str) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, format)).to(getattr(torch, format))


def _make_linear(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, depth, columns = shape
    # The bias lives on the scale of one product: a recipe of its own would drown or be drowned.
    return {
        "x": tensor(recipe, (rows, depth), 3 * seed, format),
        "weight": tensor(recipe, (columns, depth), 3 * seed + 1, format),
        "bias": tensor("normal", (columns,), 3 * seed + 2, format),
    }


def _make_matmul(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, depth, columns = shape
    return {
        "a": tensor(recipe, (rows, depth), 2 * seed, format),
        "b": tensor(recipe, (depth, columns), 2 * seed + 1, format),
    }


def _exact_linear(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    x, weight, bias, dy64 = (each.double() for each in (arguments["x"], arguments["weight"], arguments["bias"], dy))
    (rows, depth), columns = x.shape, weight.shape[0]
    ones = torch.ones(1, rows, dtype=torch.float64)

    def bounded(exact: Tensor, magnitude: Tensor, terms: int, roundings: int = 0) -> Bounded:
        return Bounded(exact=exact, allowed=allowed_error(exact, magnitude, error(terms), terms, roundings, dy.dtype))

    return {
        "output": bounded(linear64(x, weight, bias), x.abs() @ weight.abs().T + bias.abs(), depth, roundings=1),
        "x": bounded(dy64 @ weight, dy64.abs() @ weight.abs(), columns),
        "weight": bounded(dy64.T @ x, dy64.abs().T @ x.abs(), rows),
        "bias": bounded((ones @ dy64)[0], (ones @ dy64.abs())[0], rows),
    }


def _exact_matmul(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    a, b, dy64 = arguments["a"].double(), arguments["b"].double(), dy.double()

    def bounded(left: Tensor, right: Tensor) -> Bounded:
        exact, terms = matmul64(left, right), left.shape[1]
        return Bounded(
            exact=exact, allowed=allowed_error(exact, left.abs() @ right.abs(), error(terms), terms, 0, dy.dtype)
        )

    return {"output": bounded(a, b), "a": bounded(dy64, b.T), "b": bounded(a.T, dy64)}


def _probe(weight_shape: Callable[[int], tuple[int, int]]) -> Callable[[Function, int, int, int, str, str], Probe]:
    """Row `row` holds the numbers, the matrix is all ones: output column 0 is their sum."""

    def probe(function: Function, terms: int, rows: int, row: int, format: str, device: str) -> Probe:
        dtype = getattr(torch, format)
        matrix = torch.ones(weight_shape(terms), dtype=dtype, device=device)
        batch = torch.ones(rows, terms, dtype=dtype, device=device)

        def run(values: np.ndarray) -> float:
            batch[row] = torch.from_numpy(values).to(dtype)
            return float(function(batch, matrix)[row, 0])

        return run

    return probe


# As many columns as terms: narrow outputs would send some libraries down a special path.
_LINEAR_PROBE = _probe(lambda terms: (max(terms, 16), terms))
_MATMUL_PROBE = _probe(lambda terms: (terms, max(terms, 16)))


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; every row of the launch table by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops.matmul.launch_table import TABLE

    return [{"launch": launch} for launch in TABLE[format]]


def _resume_linear(arguments: Arguments, dy: Tensor, sums: dict[str, Tensor] | None, backend: str) -> dict[str, Tensor]:
    x, weight = arguments["x"], arguments["weight"]
    fresh: dict[str, Any] = {"dtype": torch.float32, "device": x.device}
    sums = sums or {"weight": torch.zeros(weight.shape, **fresh), "bias": torch.zeros(weight.shape[0], **fresh)}
    matmul_accumulate_(sums["weight"], dy.T, x, backend=backend)
    matmul_accumulate_(sums["bias"].view(1, -1), dy.new_ones(1, dy.shape[0]), dy, backend=backend)
    return sums


def _resume_matmul(arguments: Arguments, dy: Tensor, sums: dict[str, Tensor] | None, backend: str) -> dict[str, Tensor]:
    a, b = arguments["a"], arguments["b"]
    sums = sums or {"b": torch.zeros(b.shape, dtype=torch.float32, device=b.device)}
    matmul_accumulate_(sums["b"], a.T, dy, backend=backend)
    return sums


SPECS = {
    "linear": OperatorSpec(
        name="linear",
        row_arguments=("x",),
        shared_arguments=("weight", "bias"),
        shape_axes="MKN",
        make=_make_linear,
        exact=_exact_linear,
        probe=_LINEAR_PROBE,
        launches=launches,
        resume=_resume_linear,
        optional_arguments=("bias",),
        exact_specials=True,
    ),
    "matmul": OperatorSpec(
        name="matmul",
        row_arguments=("a",),
        shared_arguments=("b",),
        shape_axes="MKN",
        make=_make_matmul,
        exact=_exact_matmul,
        probe=_MATMUL_PROBE,
        launches=launches,
        resume=_resume_matmul,
        exact_specials=True,
        aliases=("gemm", "mm"),
    ),
}
