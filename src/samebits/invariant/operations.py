"""What an operation of torch is: its name, what samebits computes in its place, and what integers give, which is exact.

Knows no mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from samebits.invariant.compound import REWRITTEN, WHOLE
from samebits.invariant.harmless import HARMLESS, HARMLESS_IF, HARMLESS_LIBRARIES, HARMLESS_OFF_CPU, MOVING, tensors_in
from samebits.invariant.refused import REASONS
from samebits.invariant.routed import ROUTED, ROUTED_ON_CPU

CHOICES_OF_INTEGERS = frozenset(("topk", "sort", "kthvalue", "median", "nanmedian", "mode"))
"""Of equal values one is chosen, and its place is told."""


class Operation(NamedTuple):
    """What can be said before a call's arguments are looked at."""

    func: Any
    text: str
    """aten.mm.default"""
    name: str
    """Without its namespace."""
    in_place: bool
    moves: bool
    """Computes nothing, of whatever kind of numbers, or is samebits' own."""
    harmless: bool
    """Of real numbers at least."""
    harmless_off_cpu: bool
    """Of real numbers at least, on other devices."""
    routed: str
    """Its name in ROUTED, if nothing but its first argument's dtype can keep it from being computed there; or ""."""


NOTHING: Final = object()
"""No result: an operation may well give None."""

_known: dict[int, Operation] = {}


def _described(func: Any) -> Operation:
    library, name = func._schema.name.split("::")
    in_place = name.endswith("_") and not name.endswith("__") and func._schema.is_mutable
    base = base_of(name, in_place)
    as_it_is = library == "aten" and name not in REWRITTEN and name not in WHOLE
    taken_apart = name not in REASONS and is_compound(func)
    return Operation(
        func,
        str(func),
        name,
        in_place,
        moves=(as_it_is and name in MOVING) or library in HARMLESS_LIBRARIES,
        harmless=as_it_is and name in HARMLESS,
        harmless_off_cpu=as_it_is
        and not taken_apart
        and (name in HARMLESS_OFF_CPU or (base in ROUTED_ON_CPU and base not in ROUTED)),
        routed=base if as_it_is and not taken_apart and name not in HARMLESS_IF and base in ROUTED else "",
    )


def operation_of(func: Any) -> Operation:
    """Remembered by identity: every call of every operation asks, and torch's own hash of one is written in Python."""
    known = _known.get(id(func))
    if known is None:
        known = _known[id(func)] = _described(func)
    return known


@cache
def text_of(func: Any) -> str:
    """aten.mm.default"""
    return str(func)


@cache
def is_compound(func: Any) -> bool:
    """Whether torch can say what it is made of. Asking takes longer than a view does, hence remembered."""
    return bool(func._can_decompose())


def route_of(name: str, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    base = base_of(name, in_place)
    route = ROUTED.get(base)
    if route is None and on_cpu(args, kwargs):
        route = ROUTED_ON_CPU.get(base)
    return route


def base_of(name: str, in_place: bool) -> str:
    """The operation that an in-place form is the form of."""
    return name[:-1] if in_place else name


def on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors_in((args, kwargs)))


def of_integers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What integers give where integers come out: every order gives the same. NOTHING where a float goes in or comes
    out (the root of a whole number is one of torch's functions too), and of random numbers, which sum nothing."""
    if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
        return NOTHING  # most calls, at a glance
    given, dtype = list(tensors_in((args, kwargs))), kwargs.get("dtype")
    if not given or any(map(_is_inexact, given)):
        return NOTHING
    if dtype is not None and (dtype.is_floating_point or dtype.is_complex):
        return NOTHING
    if torch.Tag.nondeterministic_seeded in func.tags or operation_of(func).name in CHOICES_OF_INTEGERS:
        return NOTHING
    found = func(*args, **kwargs)
    return NOTHING if any(map(_is_inexact, tensors_in(found))) else found


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
