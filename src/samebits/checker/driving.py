"""Calls the function under judgement, forward and backward, and compares what comes out as bits.

The only place where a stranger's code runs: whatever it raises becomes a finding. Knows specs and no operator."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from samebits.checker.cases import Case, cotangent
from samebits.checker.recent import Recent
from samebits.contracts.spec import Arguments, Function, OperatorSpec
from samebits.numerics.bits import compare

DEVICES = {"cpu": "cpu", "triton": "cuda"}
OUTPUT = "output"
# "output", and the gradient of each argument by the argument's name.
Results: TypeAlias = dict[str, Tensor]
Way = TypeVar("Way")


class CallError(Exception):
    """The function under judgement raised, or returned what no spec can return; the text says which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A function, how it is driven, and where."""

    function: Function
    spec: OperatorSpec
    backend: str
    orders: Mapping[str, str] = field(default_factory=dict)
    """Format to declared order; empty for a function that declares none."""
    reference: Function | None = None
    """The equation in float64, where a contract names one."""
    importable: str = ""
    """"module:attribute" by which a fresh process can import the function, or "" where it cannot."""
    watch: Callable[[Case, Tensor], None] | None = None
    """Told the output of each case's first call, by whoever makes a receipt."""
    ways: int | None = None
    """How many of a promise's ways to vary a call each case meets, chosen by the case; None: all of them."""
    recent: Recent | None = None
    """First calls of this function, where several obligations are tried on the same cases side by side."""

    @property
    def device(self) -> str:
        return DEVICES[self.backend]

    def call(self, *arguments: object) -> Tensor:
        """One call by position. Nothing is known about the function, so nothing it raises may pass for ours."""
        try:
            output = self.function(*arguments)
        except Exception as error:
            raise CallError(f"raised {said(error)}") from error
        if not isinstance(output, Tensor):
            raise CallError(f"returned {type(output).__name__}; one Tensor is needed")
        return output


def said(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'without a message'}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """The inputs of a case on their device, the cotangent among them."""

    arguments: Arguments
    cotangent: Tensor

    @property
    def rows(self) -> int:
        return self.cotangent.shape[0]


def made(setting: Setting, case: Case) -> Arguments:
    """The inputs of a case on their device; whoever gets them may change them."""

    def make() -> Arguments:
        found = setting.spec.make(case.shape, case.recipe, case.format, case.seed)
        return {name: value.to(setting.device) for name, value in found.items()}

    if setting.recent is None:
        return make()
    kept = setting.recent.of("inputs", setting.backend, case, make)
    return {name: value.clone() for name, value in kept.items()}


def begin(setting: Setting, case: Case, wanted: Sequence[str]) -> tuple[Prepared, Results]:
    """Makes the inputs of a case and drives the function once; the output's shape is also the cotangent's."""
    if setting.recent is None:
        prepared, results = _begin(setting, case, wanted)
    else:
        # One call for all who ask, with every gradient; each gets those it wants.
        prepared, results = setting.recent.of(
            "results", setting.backend, case, lambda: _begin(setting, case, everything(setting.spec))
        )
        prepared = Prepared(made(setting, case), prepared.cotangent.clone())
        results = {name: value for name, value in results.items() if name == OUTPUT or name in wanted}
    if setting.watch is not None:
        setting.watch(case, results[OUTPUT])
    return prepared, results


def _begin(setting: Setting, case: Case, wanted: Sequence[str]) -> tuple[Prepared, Results]:
    arguments = made(setting, case)
    given, output = _forward(setting, {name: value.clone() for name, value in arguments.items()}, wanted)
    if not output.dim() or output.shape[0] != case.shape[0]:
        raise CallError(
            f"returned shape {list(output.shape)} for {case.shape[0]} rows; the first axis must be the rows"
        )
    dy = cotangent(case, output).to(setting.device)
    return Prepared(arguments, dy), _backward(given, output, dy)


def drive(setting: Setting, arguments: Arguments, dy: Tensor, wanted: Sequence[str]) -> Results:
    """The output, and the gradients of the `wanted` arguments where the spec has gradients."""
    return _backward(*_forward(setting, arguments, wanted), dy)


def _forward(setting: Setting, arguments: Arguments, wanted: Sequence[str]) -> tuple[Arguments, Tensor]:
    """(the arguments as they were given, those with a gradient marked; the output)."""
    spec = setting.spec
    wanted = [name for name in wanted if name not in spec.without_gradient] if spec.differentiable else []
    given = {name: value.detach().requires_grad_(name in wanted) for name, value in arguments.items()}
    return given, setting.call(*given.values())


def _backward(given: Arguments, output: Tensor, dy: Tensor) -> Results:
    wanted = [name for name, value in given.items() if value.requires_grad]
    results = {OUTPUT: output.detach()}
    if wanted:
        try:
            gradients = torch.autograd.grad(output, [given[name] for name in wanted], dy)
        except Exception as error:
            raise CallError(f"backward raised {said(error)}") from error
        results |= dict(zip(wanted, gradients, strict=True))
    return results


def some_ways(setting: Setting, case: Case, ways: Sequence[Way]) -> Sequence[Way]:
    """The ways to vary a call that this case meets: all, or so many as the setting says, another few for each case."""
    if setting.ways is None or setting.ways >= len(ways):
        return ways
    return random.Random(str(case)).sample(ways, setting.ways)


def everything(spec: OperatorSpec) -> tuple[str, ...]:
    """All arguments, those without a gradient too: `drive` knows which they are."""
    return (*spec.row_arguments, *spec.shared_arguments)


def label(name: str) -> str:
    return name if name == OUTPUT else f"gradient of {name}"


def equal_bits(left: Tensor, right: Tensor) -> bool:
    """Whether all bits agree, found where the tensors lie: the usual case, and much the quickest to see."""
    if left.device != right.device or left.dtype != right.dtype:
        return False
    if left.is_floating_point():
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
        left, right = left.contiguous().view(whole), right.contiguous().view(whole)
    return torch.equal(left, right)


def difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor], rows: Sequence[int] | None = None) -> str:
    """The first result that differs, in one line, or "". With `rows`, element 0 is named by row rows[0], and so on."""
    for name, expected in left.items():
        found = right[name]
        if expected.shape != found.shape or expected.dtype != found.dtype:
            sides = [f"{list(side.shape)} {str(side.dtype).removeprefix('torch.')}" for side in (expected, found)]
            return f"{label(name)}: {sides[0]} != {sides[1]}"
        if equal_bits(expected, found):
            continue
        if not expected.is_floating_point():
            places = torch.nonzero(expected != found)
            if len(places):
                index = tuple(places[0].tolist())
                at = f"first {list(index)}: {expected[index]} != {found[index]}"
                return f"{label(name)}: {len(places)} of {expected.numel()} differ; {at}"
            continue
        differs = compare(expected, found)
        if differs is not None:
            if rows is not None:
                differs = replace(differs, index=(rows[differs.index[0]], *differs.index[1:]))
            return f"{label(name)}: {differs}"
    return ""
