"""Every operator as its own contract declares it: functions, specs, orders, and the inputs of its accuracy.

Found by listing the operators' folder, so that a new operator is among them without an edit here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod

import torch
from torch import Tensor

from samebits.checker.targets import OPERATORS, import_function, specs
from samebits.contracts.language import Contract, Domain
from samebits.contracts.orders import sum_error
from samebits.contracts.spec import Arguments, Bounded, Function, OperatorSpec
from samebits.numerics.recipes import RECIPES, make
from samebits.ops.arguments import short

BACKEND = "cpu"
OUTPUT = "output"
PROMISE = "accuracy"
# The arguments of an operator draw from small multiples of a seed, what flows back from far away.
COTANGENT_SEED = 2**32


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A function of an operator that promises accuracy, with what its contract says of it."""

    name: str
    function: Function
    spec: OperatorSpec
    orders: dict[str, str]
    domain: Domain

    @property
    def differentiated(self) -> list[str]:
        """The arguments that have a gradient."""
        named = (*self.spec.row_arguments, *self.spec.shared_arguments) if self.spec.differentiable else ()
        return [name for name in named if name not in self.spec.without_gradient]

    def arguments(self, size: int, recipe: str, format: str, seed: int) -> Arguments:
        """Inputs at the contract's own shape number `size`, the smallest first; where it does not name the recipe, its
        first one."""
        shapes = sorted(map(tuple, self.domain.shapes), key=prod)
        chosen = recipe if recipe in self.domain.recipes else self.domain.recipes[0]
        return self.spec.make(shapes[min(size, len(shapes) - 1)], chosen, format, seed)

    def bounds(self, arguments: Arguments, dy: Tensor, format: str) -> dict[str, Bounded]:
        """The exact output and gradients, each with the bound that follows from the declared order."""
        found = self.spec.exact(arguments, dy, partial(sum_error, self.orders[format]))
        return {name: found[name] for name in (OUTPUT, *self.differentiated)}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is computed: each operator's inputs, by the size of its shape, recipe, format and seed."""

    size: int
    recipe: str
    format: str
    seed: int

    @classmethod
    def of(cls, size: Tensor, recipe: Tensor, like: Tensor, seed: Tensor) -> Asked:
        return cls(size=int(size), recipe=list(RECIPES)[int(recipe)], format=short(like.dtype), seed=int(seed))

    def tensors(self) -> Arguments:
        """The same as tensors, which is what a recorded call takes."""
        places = {"size": self.size, "recipe": list(RECIPES).index(self.recipe), "seed": self.seed}
        size, recipe, seed = (torch.tensor([value]) for value in places.values())
        return {"size": size, "recipe": recipe, "like": torch.empty(0, dtype=getattr(torch, self.format)), "seed": seed}

    def arguments(self, declared: Declared) -> Arguments:
        return declared.arguments(self.size, self.recipe, self.format, self.seed)

    def cotangent(self, output: Tensor) -> Tensor:
        """What flows back: as random as the inputs, the same on every machine."""
        values = make("normal", tuple(output.shape), COTANGENT_SEED + self.seed, self.format)
        return torch.from_numpy(values).to(output.dtype)


def _accuracy_of(contract: Contract, subject: str) -> Domain | None:
    found = (each for each in contract.obligations.values() if each.subject == subject and each.name == PROMISE)
    obligation = next(found, None)
    return None if obligation is None else contract.domains[obligation.domain]


@cache
def declared_operators() -> Sequence[Declared]:
    """Every function that promises accuracy; an operator of which none does is an error."""
    found: list[Declared] = []
    for name, component in OPERATORS.components().items():
        contract, own = component.contract(), len(found)
        for identifier, subject in contract.subjects.items():
            domain = _accuracy_of(contract, identifier)
            if domain is not None and BACKEND in subject.orders:
                function, spec = import_function(subject.object), specs(component)[subject.spec]
                orders = subject.orders[BACKEND]
                found.append(Declared(name=subject.spec, function=function, spec=spec, orders=orders, domain=domain))
        if len(found) == own:
            raise ValueError(f"{name}: no function of it promises {PROMISE}; allowed: at least one")
    return found


def results(
    declared: Declared, asked: Asked, wrap: Callable[[Function], Function] = lambda function: function
) -> dict[str, Tensor]:
    """The output and every gradient. `wrap` stands around the operator: where faults are planted."""
    wanted = declared.differentiated
    given = {name: value.requires_grad_(name in wanted) for name, value in asked.arguments(declared).items()}
    with torch.set_grad_enabled(bool(wanted)):
        output = wrap(declared.function)(*given.values())
    gradients: Sequence[Tensor] = ()
    if wanted:
        gradients = torch.autograd.grad(output, [given[name] for name in wanted], asked.cotangent(output))
    return {OUTPUT: output.detach(), **dict(zip(wanted, gradients, strict=True))}
