"""How a checker drives a function it did not write: which arguments are rows, which are shared, and what is exact.

A component describes each of its functions by one OperatorSpec; the checker knows specs and no operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from torch import Tensor

from samebits.numerics.probes import Encoding

Arguments: TypeAlias = dict[str, Tensor]
Function: TypeAlias = Callable[..., Tensor]
Probe: TypeAlias = Callable[[np.ndarray], float]
# Words, and what asks in this form: "output" and gradients by argument's name, all or some of them, each with the shape
# that the plain call gives it.
Form: TypeAlias = tuple[str, Callable[[], dict[str, Tensor]]]
# (function, arguments, cotangent, backend) -> forms.
Forms: TypeAlias = Callable[[Function, Arguments, Tensor, str], Iterator[Form]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounded:
    """A float64 result and how far a correct kernel may be from it, element by element."""

    exact: Tensor
    allowed: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorSpec:
    """One function, as a checker sees it. Arguments go by name; the first axis of a row argument is the batch."""

    name: str
    row_arguments: tuple[str, ...]
    """Cut, permuted and padded together; their gradients are judged row by row."""
    shared_arguments: tuple[str, ...]
    """The same for every row; their gradients are sums over rows."""
    shape_axes: str
    """What the numbers of a shape mean, rows first, e.g. "MKN"."""
    make: Callable[[Sequence[int], str, str, int], Arguments]
    """(shape, recipe, format, seed) -> arguments on the CPU, the same on every machine."""
    exact: Callable[[Arguments, Tensor, Callable[[int], float]], Mapping[str, Bounded]]
    """(arguments, cotangent, error) -> "output" and each argument's gradient; error(n) is that of a sum of n terms,
    relative to the sum of their magnitudes."""
    launches: Callable[[str, str], Sequence[Mapping[str, object]]]
    """(backend, format) -> launch numbers that must not change a bit."""
    differentiable: bool = True
    """Whether gradients are judged too."""
    aliases: tuple[str, ...] = ()
    """Other libraries' names for functions of this kind."""
    stock: Mapping[Callable[..., object], Function] = field(default_factory=dict)
    """Functions of torch that take these arguments in another order, each as this spec calls it."""
    implied: Mapping[str, object] = field(default_factory=dict)
    """Options that a function of this kind may take beside its arguments, with the value that this one stands for."""
    optional_arguments: tuple[str, ...] = ()
    """Shared arguments that a function of this kind may do without: as if they were zeros."""
    own_numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Numbers that someone's function may have fixed for itself, with those to try; `exact` takes them as arguments."""
    exact_specials: bool = False
    """Whether `exact` tells infinities, NaN and subnormal results too: sums of products do, in every order."""
    exact_zero_signs: bool = False
    """Whether the sign of a zero follows from the formula alone, whatever the order of a sum."""
    without_gradient: tuple[str, ...] = ()
    """Arguments that are numbers of rows, tokens or positions: nothing flows back into them."""
    forms: Mapping[str, Forms] = field(default_factory=dict)
    """Promise to other ways of asking for the same result, where rows are more than independent: a prompt in chunks,
    a cache, a packed batch. Judged in addition to what the checker does by itself."""
    probe: Callable[[Function, int, int, int, str, str], Probe] | None = None
    """(function, terms, rows, row, format, device) -> a callable that adds `terms` numbers as `row` of `rows` does.
    None where the function's output does not show its sum."""
    encoding: Callable[[int], Encoding] | None = None
    """For leaves that cannot be negative: how inputs become leaves, for that many terms. None: signed numbers."""
    resume: Callable[[Arguments, Tensor, dict[str, Tensor] | None, str], dict[str, Tensor]] | None = None
    """(arguments of some rows, their cotangent, float32 sums so far or None, backend) -> sums with these rows added, by
    shared argument. Rounded to the dtype they are the gradients."""
