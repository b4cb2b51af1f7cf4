"""Checks that an operator's declaration implies: each argument is of the kind that its annotation says.

Knows no operator. One line says what was given and what is allowed; what kinds cannot say, shapes and ranges, the
operator itself checks."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from numbers import Integral, Real
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

Function = TypeVar("Function", bound=Callable[..., Any])
LARGEST: Final = 2**63 - 1
SMALLEST: Final = -(2**63)
_PLAIN: Final = (Tensor, nn.Parameter)


class AnySize:
    """A mark for a whole number whose size the operator itself checks."""


AnyInt = Annotated[int, AnySize]
_NAMES: Final = {
    Tensor: "a torch.Tensor",
    int: "a whole number of 64 bits",
    AnySize: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
    torch.dtype: "a torch.dtype",
    type(None): "None",
}


def checked(function: Function) -> Function:
    """The operator, which refuses arguments of another kind than it declares before anything else is done."""
    hints = get_type_hints(function, include_extras=True)
    declared = {name: tuple(_members(hints[name])) for name in inspect.signature(function).parameters}
    names, operator = tuple(declared), function.__name__

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        # A compiler's values are of kinds of its own, and were checked when it was called.
        if not torch.compiler.is_compiling():
            for name, value in zip(names, given, strict=False):
                _check(operator, name, declared[name], value)
            for name, value in named.items():
                _check(operator, name, declared.get(name, ()), value)
        return function(*given, **named)

    return call  # type: ignore[return-value]


def _members(hint: Any) -> Iterator[Any]:
    """The kinds that an annotation allows, as classes."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        for each in get_args(hint):
            yield from _members(each)
    elif origin is Literal:
        yield str
    elif origin is Annotated:
        yield get_args(hint)[1]
    else:
        yield origin or hint


def _check(operator: str, name: str, kinds: tuple[Any, ...], value: Any) -> None:
    if not kinds or Any in kinds or Iterable in kinds:
        # An unknown name is Python's to refuse; what is in an iterable is asked where it is taken.
        return
    if isinstance(value, Tensor):
        if Tensor in kinds:
            check_layout(operator, name, value)
            return
    elif any(_is(kind, value) for kind in kinds):
        return
    allowed = ", ".join(_NAMES.get(kind, kind.__name__) for kind in kinds)
    wrong_size = isinstance(value, Real) and not isinstance(value, bool)
    raise (ValueError if wrong_size else TypeError)(f"{operator}: {name} is {shown(value)}; allowed: {allowed}")


def _is(kind: Any, value: Any) -> bool:
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool) and SMALLEST <= int(value) <= LARGEST
    if kind is AnySize:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and _fits(value)
    return isinstance(value, kind)


def _fits(value: Real) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def check_layout(operator: str, name: str, tensor: Tensor) -> None:
    """A tensor whose numbers lie in memory one by one."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        layout = "nested" if tensor.is_nested else str(tensor.layout)
        raise ValueError(f"{operator}: {name} has layout {layout}; allowed: strided")


def check_each(operator: str, name: str, tensors: Iterable[Any]) -> list[Tensor]:
    """The tensors of an iterable."""
    if isinstance(tensors, str | bytes | dict) or not isinstance(tensors, Iterable):
        raise TypeError(f"{operator}: {name} is {shown(tensors)}; allowed: an iterable of tensors")
    if isinstance(tensors, Tensor):
        check_layout(operator, name, tensors)
    found = [tensors] if isinstance(tensors, Tensor) and tensors.dim() == 0 else list(tensors)
    for place, each in enumerate(found):
        if not isinstance(each, Tensor):
            raise TypeError(f"{operator}: {name} holds {shown(each)}; allowed: tensors")
        check_layout(operator, f"{name}[{place}]", each)
    return found


def shown(value: Any) -> str:
    """A wrong value in a few words."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    if type(value) in (int, float, complex) or (isinstance(value, str) and len(value) <= 40):
        return repr(value)
    kind = type(value)
    name = kind.__name__ if kind.__module__ in ("builtins", "numpy", "torch") else f"{kind.__module__}.{kind.__name__}"
    return f"a {name}"
