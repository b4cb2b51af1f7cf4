"""From what a user names to what can be judged: components, specs, and functions by their import path.

Components are found by listing a folder, never by name; what torch calls their functions, their specs say."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import samebits.ops
from samebits.contracts.registry import Component, components, nearest
from samebits.contracts.spec import Function, OperatorSpec


@dataclass(frozen=True, slots=True)
class Home:
    """A folder of components and the package it is imported as."""

    folder: Path
    package: str

    def components(self) -> dict[str, Component]:
        return components(self.folder, self.package)


OPERATORS: Final = Home(Path(next(iter(samebits.ops.__path__))), samebits.ops.__name__)


def positional(function: Callable[..., Any]) -> Function:
    """The function as a spec calls it: arguments by position, in the spec's order. Only torch's own have another."""
    if (getattr(function, "__module__", None) or "torch").partition(".")[0] != "torch":
        return function
    known = (spec.stock for spec, _ in all_specs(OPERATORS).values())
    return next((stock[function] for stock in known if function in stock), function)


def specs(component: Component) -> dict[str, OperatorSpec]:
    """The specs of one component, from its check.py."""
    found: dict[str, OperatorSpec] = importlib.import_module(f"{component.package}.check").SPECS
    return found


def all_specs(home: Home) -> dict[str, tuple[OperatorSpec, Component]]:
    """Every spec by its name, with its component."""
    return {
        name: (spec, component) for component in home.components().values() for name, spec in specs(component).items()
    }


def find_spec(name: str, home: Home) -> tuple[OperatorSpec, Component]:
    """The spec called `name` (or by a stock library's name for it) and its component."""
    known = all_specs(home)
    wanted = aliases(home).get(name, name)
    if wanted not in known:
        raise ValueError(f"no spec is called {name!r}; {nearest(name, list(known))}")
    return known[wanted]


def aliases(home: Home) -> dict[str, str]:
    """Other libraries' names to our specs' names."""
    return {alias: name for name, (spec, _) in all_specs(home).items() for alias in spec.aliases}


def check_signature(function: Function, spec: OperatorSpec, name: str) -> None:
    """A function that cannot take the spec's arguments is the caller's mistake, not a finding."""
    wanted = (*spec.row_arguments, *spec.shared_arguments)
    try:
        inspect.signature(function).bind(*wanted)
    except TypeError:
        taken = ", ".join(inspect.signature(function).parameters)
        raise ValueError(f"{name} takes ({taken}); the spec {spec.name!r} hands over ({', '.join(wanted)})") from None
    except ValueError:
        return  # a builtin that does not tell its signature: calling it will


def import_object(text: str) -> Any:
    """What `module:attribute` or `package.module.attribute` names; `f(g)` is f of g."""
    if text.endswith(")"):
        outer, _, inner = text[:-1].partition("(")
        return import_object(outer)(import_object(inner))
    if ":" in text:
        module_name, _, attribute = text.partition(":")
        candidates = [(module_name, attribute)]
    else:
        parts = text.split(".")
        candidates = [(".".join(parts[:cut]), ".".join(parts[cut:])) for cut in range(len(parts) - 1, 0, -1)]
    for module_name, attribute in candidates:
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # A module missing on the way means "look elsewhere"; one that the module itself lacks is the user's to fix.
            if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
                raise ValueError(f"{text!r} cannot be imported: {error}") from error
            continue
        for name in attribute.split("."):
            if not hasattr(found, name):
                raise ValueError(f"{text!r} cannot be imported: {module_name} has no {attribute!r}")
            found = getattr(found, name)
        return found
    raise ValueError(f"{text!r} cannot be imported: no module named {candidates[-1][0]!r}")


def import_function(text: str) -> Callable[..., Any]:
    """A callable by its import path."""
    found = import_object(text)
    if not callable(found):
        raise ValueError(f"{text!r} is {type(found).__name__}; a function is needed")
    return found  # type: ignore[no-any-return]


def looks_like_path(text: str) -> bool:
    """Whether a target is an import path rather than the name of a component."""
    return ":" in text or "." in text


def importable_name(function: Callable[..., Any]) -> str:
    """ "module:attribute" where another process can import this very function by it, else ""."""
    module = getattr(function, "__module__", None) or getattr(type(function), "__module__", "")
    name = getattr(function, "__qualname__", "")
    if not name or module == "__main__" or module not in sys.modules:
        return ""
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function else ""
