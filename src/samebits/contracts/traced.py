"""What a tracer is told of an operator's kernels: calls on small tensors with named rows, in batches, with launches.

An operator lists its calls in `triton_cases.py` as `KERNELS`; the checker runs them on expressions instead of numbers,
or compiles them, without a GPU. Knows no operator and no expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

SHARED: Final = -1
"""The row of a value that is of no row."""
HALVES: Final = ("float32", "bfloat16")
BATCHES: Final = (1, 2, 5)
# Elements: one, an odd number, whole vectors, more than any block.
ELEMENTS: Final = (1, 7, 64, 2049)
WITHOUT_ROWS: Final = ("twice", "missing", "narrowed")
# Tokens in the first and in the second block of a vocabulary, and one that is ignored.
IDS: Final = (3, 299, -100)
VOCABULARY: Final = 304


class Memory(Protocol):
    """Where a call names what its kernels read."""

    def add(
        self,
        name: str,
        tensor: Tensor,
        rows: np.ndarray | None = None,
        places: np.ndarray | None = None,
        *,
        traced: bool = False,
    ) -> None:
        """A tensor whose elements belong to `rows` at `places` in them; without these, every element is shared."""


@dataclass(frozen=True, slots=True)
class Output:
    """A result: of which row each element is, and at which place in it."""

    tensor: Tensor
    rows: np.ndarray
    places: np.ndarray


Outputs: TypeAlias = dict[str, Output]
Call: TypeAlias = Callable[[Memory, torch.dtype, Any], Outputs]
Launches: TypeAlias = Callable[[str], Sequence[object]]
"""(format) -> launches; None among them is what the operator chooses by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One function of an operator, traced for every format, batch and launch."""

    words: str
    call: Call
    batches: Sequence[Any]
    rows: Callable[[Any], int]
    """How many rows of output a batch has, all results together."""
    launches: Launches
    formats: Sequence[str] = HALVES
    finite: bool = False
    branch: bool | None = None
    faults: Sequence[str] = ("twice", "missing", "narrowed", "neighbour")
    """Planted faults that must be refused; `neighbour` only where there are rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedKernels:
    """All that is traced and compiled of one operator; a kernel whose way depends on its data is not."""

    cases: Sequence[Case]
    variants: tuple[str, ...] = ()
    """Constants of the kernels that ask for another function, and are no launch numbers."""
    approximations: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By kernel, the approximate instructions that its order declares."""


def checked(launches: Callable[[str, str], Sequence[Mapping[str, object]]]) -> Launches:
    """What the operator's own check forces, and what the operator chooses."""
    return lambda format: [None, *(each["launch"] for each in launches("triton", format))]


def over_rows(words: str, call: Call, results: int, launches: Launches, **options: Any) -> Case:
    """A call in batches of rows, with so many results a row."""
    return Case(words=words, call=call, batches=BATCHES, rows=lambda m: results * m, launches=launches, **options)


def over_elements(words: str, call: Call, results: int, launches: Launches, **options: Any) -> Case:
    """A call on so many elements, each of which is a row."""
    return Case(words=words, call=call, batches=ELEMENTS, rows=lambda n: results * n, launches=launches, **options)


def element_cases(name: str, kernel: Any, launches: Launches, *tensors: str) -> tuple[Case, Case]:
    """`forward(tensors)` and `backward(dy, tensors)` of a kernel module that computes every element alone."""

    def forward(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
        return {"y": result(kernel.forward(*by_rows(memory, dtype, **dict.fromkeys(tensors, (n,)))))}

    def backward(memory: Memory, dtype: torch.dtype, n: int) -> Outputs:
        found = kernel.backward(*by_rows(memory, dtype, **dict.fromkeys(("dy", *tensors), (n,))))
        gradients = (found,) if isinstance(found, Tensor) else found
        return {f"d{each}": result(gradient) for each, gradient in zip(tensors, gradients, strict=True)}

    behind = over_elements("its gradients", backward, len(tensors), launches)
    return over_elements(name, forward, 1, launches), behind


def over_cuts(words: str, call: Call, results: int, launches: Launches, batches: Sequence[Any], **options: Any) -> Case:
    """Sums over all rows, taken at once or resumed at the cuts of a batch: each result is one row."""
    options.setdefault("faults", WITHOUT_ROWS)
    return Case(words=words, call=call, batches=batches, rows=lambda _: results, launches=launches, **options)


def batch_axis(tensor: Tensor, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows along an axis; the place is the element's number without it."""
    shape = tuple(tensor.shape)
    rows = np.broadcast_to(np.arange(shape[axis]).reshape([-1 if at == axis else 1 for at in range(len(shape))]), shape)
    rest = int(np.prod(shape)) // max(1, shape[axis])
    others = shape[:axis] + shape[axis + 1 :]
    places = np.moveaxis(np.broadcast_to(np.arange(rest).reshape(others), (shape[axis], *others)), 0, axis)
    return np.ascontiguousarray(rows), np.ascontiguousarray(places)


def by_rows(memory: Memory, dtype: torch.dtype, **shapes: tuple[int, ...]) -> list[Tensor]:
    """Inputs whose first axis is the batch."""
    made = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
    for name, tensor in made.items():
        memory.add(name, tensor, *batch_axis(tensor))
    return list(made.values())


def shared(memory: Memory, dtype: torch.dtype, **shapes: tuple[int, ...]) -> list[Tensor]:
    """Inputs that every row meets."""
    made = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
    for name, tensor in made.items():
        memory.add(name, tensor)
    return list(made.values())


def rows_of_a_sum(memory: Memory, first: int, **tensors: Tensor) -> None:
    """Rows of one long sum, from row `first` on: an element is named by its place among all rows."""
    for name, tensor in tensors.items():
        numbers = first * tensor[0].numel() + np.arange(tensor.numel())
        memory.add(name, tensor, np.full(tensor.numel(), SHARED), numbers)


def result(tensor: Tensor, axis: int = 0) -> Output:
    """A result with rows along an axis."""
    return Output(tensor, *batch_axis(tensor, axis))


def one_row(tensor: Tensor) -> Output:
    """A result that belongs to no row: a sum over the batch."""
    shape = tuple(tensor.shape)
    return Output(tensor, np.full(shape, SHARED), np.arange(tensor.numel()).reshape(shape))


def tokens(m: int) -> Tensor:
    """A token for each row, in turn."""
    return torch.tensor([IDS[row % len(IDS)] for row in range(m)])


def by_token(tensor: Tensor, m: int) -> Output:
    """A result whose rows are compared with rows of the same token."""
    output = result(tensor)
    per = output.places.size // m
    kinds = np.broadcast_to((np.arange(m) % len(IDS))[:, None], (m, per))
    places = (output.places.reshape(m, per) + per * kinds).reshape(output.places.shape)
    return Output(tensor, output.rows, places)
