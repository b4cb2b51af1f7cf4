"""OperatorSpecs of what the model's layer promises: judged by their own predicates alone, without bounds or launches.

Knows no component."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, OperatorSpec


def _exact(arguments: Arguments, _: Tensor, __: Callable[[int], float]) -> Mapping[str, Bounded]:
    raise ValueError("a component of the model states no bound by element; allowed: the predicates of its contract")


def spec(
    name: str,
    axes: str,
    make: Callable[[Sequence[int], str, str, int], Arguments],
    *,
    rows: tuple[str, ...],
    shared: tuple[str, ...] = (),
) -> OperatorSpec:
    """A spec through which only predicates go."""
    return OperatorSpec(
        name=name,
        row_arguments=rows,
        shared_arguments=shared,
        shape_axes=axes,
        make=make,
        exact=_exact,
        launches=lambda backend, format: [],
        differentiable=False,
        without_gradient=(*rows, *shared),
    )
