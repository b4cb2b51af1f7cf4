"""How a checker drives `lm_head`: inputs, exact values and bounds, probes, launch numbers, the resumed gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, Function, OperatorSpec, Probe
from samebits.ops.lm_head import tied_weight_gradient_
from samebits.ops.lm_head.reference import lm_head64, tied_gradient64
from samebits.ops.matmul import check as matmul
from samebits.ops.matmul import matmul_accumulate_
from samebits.ops.rounding import allowed_error


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, depth, vocabulary = shape
    return {
        "hidden": matmul.tensor(recipe, (rows, depth), 2 * seed, format),
        "weight": matmul.tensor(recipe, (vocabulary, depth), 2 * seed + 1, format),
    }


def _exact(arguments: Arguments, dlogits: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    hidden, weight, dtype = arguments["hidden"].double(), arguments["weight"].double(), arguments["hidden"].dtype
    # What flows back is rounded to the storage dtype first: to the exact value's nearest, hence no error of its own.
    dz = dlogits.to(dtype).double()

    def bounded(left: Tensor, right: Tensor, stored: torch.dtype) -> Bounded:
        exact, terms = left @ right, left.shape[1]
        allowed = allowed_error(exact, left.abs() @ right.abs(), error(terms), terms, 0, stored)
        return Bounded(exact=exact, allowed=allowed)

    output = bounded(hidden, weight.T, torch.float32)
    return {
        "output": Bounded(exact=lm_head64(hidden, weight), allowed=output.allowed),
        "hidden": bounded(dz, weight, dtype),
        "weight": bounded(dz.T, hidden, dtype),
    }


def tied_gradient(hidden: Tensor, dlogits: Tensor, ids: Tensor, dembedding: Tensor) -> Tensor:
    """`tied_weight_gradient_` into an accumulator of zeros."""
    zeros = torch.zeros(dlogits.shape[-1], hidden.shape[-1], dtype=torch.float32, device=hidden.device)
    return tied_weight_gradient_(zeros, hidden, dlogits, ids, dembedding)


def _make_tied(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows, depth, vocabulary = shape
    sizes = {"hidden": depth, "dlogits": vocabulary, "dembedding": depth}
    made = {
        name: matmul.tensor(recipe, (rows, size), 4 * seed + number, format)
        for number, (name, size) in enumerate(sizes.items())
    }
    ids = torch.arange(rows) * 7919 % vocabulary
    return {"hidden": made["hidden"], "dlogits": made["dlogits"], "ids": ids, "dembedding": made["dembedding"]}


def _exact_tied(arguments: Arguments, _: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    hidden, dlogits, ids, dembedding = (arguments[name] for name in ("hidden", "dlogits", "ids", "dembedding"))
    exact, terms = tied_gradient64(hidden, dlogits, ids, dembedding), 2 * len(ids)
    magnitude = tied_gradient64(hidden.abs(), dlogits.abs(), ids, dembedding.abs())
    return {
        "output": Bounded(exact=exact, allowed=allowed_error(exact, magnitude, error(terms), terms, 0, torch.float32))
    }


def _probe(function: Function, terms: int, rows: int, row: int, format: str, device: str) -> Probe:
    """Row `row` holds the numbers, the weight is all ones: the first logit is their sum."""
    dtype = getattr(torch, format)
    weight = torch.ones(max(terms, 16), terms, dtype=dtype, device=device)
    batch = torch.ones(rows, terms, dtype=dtype, device=device)

    def run(values: np.ndarray) -> float:
        batch[row] = torch.from_numpy(values).to(dtype)
        return float(function(batch, weight)[row, 0])

    return run


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Those of `matmul`, but for tiles whose float32 output does not fit into shared memory beside their stages."""
    if backend == "cpu":
        return matmul.launches(backend, format)
    from samebits.ops.matmul.launch_table import FEW_WAVES, ONE_WAVE

    return [numbers for numbers in matmul.launches(backend, format) if numbers["launch"] not in (FEW_WAVES, ONE_WAVE)]


def _resume(arguments: Arguments, dy: Tensor, sums: dict[str, Tensor] | None, backend: str) -> dict[str, Tensor]:
    hidden, weight = arguments["hidden"], arguments["weight"]
    sums = sums or {"weight": torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)}
    matmul_accumulate_(sums["weight"], dy.to(hidden.dtype).T, hidden, backend=backend)
    return sums


SPECS = {
    "lm_head": OperatorSpec(
        name="lm_head",
        row_arguments=("hidden",),
        shared_arguments=("weight",),
        shape_axes="MKV",
        make=_make,
        exact=_exact,
        probe=_probe,
        launches=launches,
        resume=_resume,
    ),
    "tied_gradient": OperatorSpec(
        name="tied_gradient",
        row_arguments=("hidden", "dlogits", "ids", "dembedding"),
        shared_arguments=(),
        shape_axes="MKV",
        make=_make_tied,
        exact=_exact_tied,
        launches=launches,
        differentiable=False,
        without_gradient=("ids",),
    ),
}
