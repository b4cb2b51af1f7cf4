"""How a stranger's function takes the arguments of a known operator: which, in what order, with which numbers beside.

Finds out from names and signatures alone; where they do not tell, the caller tries the candidates."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.checker.targets import Home, aliases, all_specs, find_spec, import_function
from samebits.contracts.registry import Component
from samebits.contracts.spec import OperatorSpec

# Numbers that an operator's arguments imply, under the names that people give them.
SCALARS: dict[str, object] = {"causal": True, "is_causal": True, "dim": -1, "axis": -1}
# What is added under a root; each operator has its own.
EPSILON_NAMES = ("eps", "epsilon", "variance_epsilon")
_BY_PLACE = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """A call of the function: arguments in its own order, some by keyword, some left out, numbers beside."""

    spec: OperatorSpec
    order: tuple[str, ...]
    keywords: Mapping[str, str]
    """Argument to the function's own name for it, where it goes by name."""
    scalars: Mapping[str, object]
    optional: tuple[str, ...] = ()
    """Arguments of `order` that may be left out."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Arguments of the operator that this function never takes."""
        known = (*self.spec.row_arguments, *self.spec.shared_arguments)
        return tuple(name for name in known if name not in self.order)


def form_of(spec: OperatorSpec, parameters: Sequence[Sequence[Any]] | None, name: str) -> Form:
    """The function's form for this operator; a signature that cannot take its arguments is a ValueError."""
    wanted = (*spec.row_arguments, *spec.shared_arguments)
    needed = tuple(each for each in wanted if each not in spec.optional_arguments)
    if parameters is None:
        return Form(spec=spec, order=wanted, keywords={}, scalars={})
    epsilons = spec.own_numbers.get("eps", ())[:1]
    implied = {**SCALARS, **{each: value for value in epsilons for each in EPSILON_NAMES}, **spec.implied}
    scalars = {each: value for each, value in implied.items() if any(each == one for one, _, _ in parameters)}
    own = [(each, required) for each, kind, required in parameters if kind in _BY_PLACE and each not in scalars]
    open_end = any(kind == "VAR_POSITIONAL" for _, kind, _ in parameters)
    named = [each for each, kind, required in parameters if kind == "KEYWORD_ONLY" and required and each not in scalars]
    least = sum(required for _, required in own)
    refused = ValueError(
        f"{name} takes ({', '.join(each for each, _, _ in parameters)}); {spec.name!r} hands over ({', '.join(wanted)})"
    )
    for passed in (wanted, needed):
        by_name = {each: each for each in passed if each in named}
        by_place = [each for each in passed if each not in by_name]
        fits = least <= len(by_place) and (open_end or len(by_place) <= len(own)) and set(named) <= set(by_name)
        if fits:
            own_names = [each for each, _ in own[: len(by_place)]]
            if set(own_names) == set(by_place) and own_names != by_place:
                by_name |= {each: each for each in by_place}
            optional = tuple(each for each in passed if each not in needed and len(needed) >= least)
            return Form(spec=spec, order=passed, keywords=by_name, scalars=scalars, optional=optional)
    raise refused


def order_of_probes(spec: OperatorSpec, component: Component) -> tuple[str, ...]:
    """A spec's arguments as its probes hand them over: in the order of the component's own function."""
    arguments = (*spec.row_arguments, *spec.shared_arguments)
    own = next((each.object for each in component.contract().subjects.values() if each.spec == spec.name), None)
    named = list(inspect.signature(import_function(own)).parameters) if own else []
    return tuple(sorted(arguments, key=lambda name: named.index(name) if name in named else len(named)))


def candidates(own_name: str, parameters: Sequence[Sequence[Any]] | None, like: str | None, home: Home) -> list[Form]:
    """The forms a function may have: one where its name or its parameters tell, several where only trying does."""
    if like is not None:
        return [form_of(find_spec(like, home)[0], parameters, own_name)]
    known = {name: spec for name, (spec, _) in all_specs(home).items()}
    fitting: dict[str, Form] = {}
    for name, spec in known.items():
        try:
            fitting[name] = form_of(spec, parameters, own_name)
        except ValueError:
            continue
    hints = [
        (len(word), name)
        for word, name in {**{each: each for each in known}, **aliases(home)}.items()
        if word in own_name.lower()
    ]
    for _, name in sorted(hints, reverse=True):
        if name in fitting:
            return [fitting[name]]
    if hints:  # the name tells and the signature disagrees: say so
        return [form_of(known[max(hints)[1]], parameters, own_name)]
    spelled = [
        form
        for form in fitting.values()
        if parameters and [each for each, _, _ in parameters][: len(form.order)] == list(form.order)
    ]
    return spelled if len(spelled) == 1 else list(fitting.values())
