"""A call that really happened: arguments, output, and the way to ask the same function again.

Only a Recorder makes one, by calling the function; a predicate judges these and nothing that was handed in."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Function

_KEY = object()
Way = TypeVar("Way")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """Which input it is: shape, recipe, format and seed fix every bit."""

    shape: tuple[int, ...]
    recipe: str
    format: str
    seed: int
    ways: int | None = None
    """Of the options that a predicate tries on each call, how many this one meets; None: all of them."""


class Call:
    """One recorded call."""

    __slots__ = ("_output", "_recorder", "arguments", "inputs")

    def __init__(self, key: object, recorder: Recorder, inputs: Inputs, arguments: Arguments, output: Tensor) -> None:
        if key is not _KEY:
            raise TypeError("a Call is made by a Recorder, out of a call that happened; numbers cannot be handed in")
        self._recorder, self.inputs, self.arguments, self._output = recorder, inputs, arguments, output

    @property
    def output(self) -> Tensor:
        """What came out; that somebody looked is counted, for a predicate that looks at nothing judges nothing."""
        self._recorder.looks += 1
        return self._output

    @property
    def format(self) -> str:
        return self.inputs.format

    @property
    def backend(self) -> str:
        return self._recorder.backend

    @property
    def reference(self) -> Callable[..., Any]:
        """The contract's equation in float64."""
        return self._recorder.reference

    def some_of(self, ways: Sequence[Way]) -> Sequence[Way]:
        """The options to try on this call: all, or as many as it is to meet, another few for each input."""
        if self.inputs.ways is None or self.inputs.ways >= len(ways):
            return ways
        return random.Random(str(self.inputs)).sample(ways, self.inputs.ways)

    def sum_error(self, terms: int) -> float:
        """Error of a sum of so many terms in the declared order, relative to the sum of their magnitudes."""
        return self._recorder.sum_error(self.format, terms)

    def again(self, options: Mapping[str, Any] | None = None, **changed: Tensor) -> Tensor:
        """The same function with some arguments changed, by name; `options` are handed over by keyword."""
        return self._recorder.run({**self.arguments, **changed}, options or {})

    def gradients(
        self,
        dy: Tensor | None = None,
        wanted: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        **changed: Tensor,
    ) -> dict[str, Tensor]:
        """Gradients of the wanted arguments (default: all that have one) where `dy` (default: ones) flows in."""
        given = {**self.arguments, **changed}
        names = wanted or [name for name in self._recorder.differentiable if given[name].is_floating_point()]
        inputs = {name: value.detach().clone().requires_grad_(name in names) for name, value in given.items()}
        output = self._recorder.run(inputs, options or {}, gradients=True)
        dy = torch.ones_like(output) if dy is None else dy
        found = torch.autograd.grad(output, [inputs[name] for name in names], dy)
        return dict(zip(names, found, strict=True))

    def refusal(self, options: Mapping[str, Any] | None = None, **changed: Tensor) -> str:
        """What the function says when it refuses the changed arguments with a ValueError; "" where it takes them."""
        try:
            self.again(options, **changed)
        except ValueError as error:
            return str(error)
        return ""


class Recorder:
    """Calls one function and counts. Arguments go by position, in the spec's order."""

    def __init__(
        self,
        function: Function,
        *,
        backend: str,
        reference: Callable[..., Any],
        sum_error: Callable[[str, int], float],
        differentiable: Sequence[str],
    ) -> None:
        self.function, self.backend, self.reference = function, backend, reference
        self.sum_error, self.differentiable = sum_error, tuple(differentiable)
        self.calls = 0
        self.looks = 0
        """How often an output was looked at, or another call asked for."""

    def run(self, arguments: Arguments, options: Mapping[str, Any], *, gradients: bool = False) -> Tensor:
        """One call, counted."""
        self.calls += 1
        self.looks += 1
        with torch.set_grad_enabled(gradients):
            output = self.function(*arguments.values(), **options)
        if not isinstance(output, Tensor):
            raise TypeError(f"{self.function!r} returned {type(output).__name__}; one Tensor is needed")
        return output

    def record(
        self, inputs: Inputs, arguments: Arguments, kept: Callable[[Callable[[], Tensor]], Tensor] | None = None
    ) -> Call:
        """A call that a predicate can judge. `kept` makes the call, or remembers what it gave before."""

        def run() -> Tensor:
            return self.run({name: value.clone() for name, value in arguments.items()}, {})

        output = run() if kept is None else kept(run)
        self.looks = 0
        return Call(_KEY, self, inputs, arguments, output)
