"""Whether two functions are the same lines of Python, whatever they are called and say of themselves.

Knows no function. Models are recognised by it: what has the same code does the same with the same globals."""

from __future__ import annotations

import dis
from types import FunctionType
from typing import Any


def same_code(function: Any, known: Any) -> bool:
    """The names that are looked up are compared first, for most functions part there."""
    if not isinstance(function, FunctionType):
        return False
    code, other = function.__code__, known.__code__
    if (code.co_names, code.co_varnames, code.co_argcount) != (other.co_names, other.co_varnames, other.co_argcount):
        return False
    same_defaults = (function.__defaults__, function.__kwdefaults__) == (known.__defaults__, known.__kwdefaults__)
    return same_defaults and not code.co_freevars and _steps(function) == _steps(known)


def _steps(function: FunctionType) -> list[tuple[str, Any]]:
    """Instructions with what they name: a constant's number among all depends on whether there is a docstring."""
    return [(each.opname, each.argval) for each in dis.get_instructions(function)]
