"""What a call does, seen from outside: operators dispatched, lines of its Python reached, numbers written in its code.

Guides the search to where behaviour changes; never decides a verdict. Lines are those of the function's own module."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LARGEST_NUMBER = 1 << 16
AXES = {"dim", "ndim", "ndimension"}
MOST_FUNCTIONS = 200
# Of one call; a loop of millions in plain Python would take ten times as long under watch.
MOST_EVENTS = 200_000
_EMPTY = (
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.empty_strided.default",
    "aten.new_empty_strided.default",
)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operator; fills what torch leaves uninitialised."""

    def __init__(self, poison: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.poison, self.names = poison, hashlib.sha256()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        self.names.update(name.encode())
        if self.poison and name in _EMPTY and result.is_floating_point():
            result.fill_(float("nan"))
        return result


class Watch:
    """The function's own code, and what of it was reached so far."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.codes = own_codes(function)
        self.reached: set[tuple[str, int]] = set()
        self._names = ""
        self._events = 0
        """Of its own code, left to be seen in this call."""

    @contextlib.contextmanager
    def on(self, *, poison: bool, lines: bool) -> Iterator[None]:
        operators = _Operators(poison)
        previous, self._events = sys.gettrace(), MOST_EVENTS
        if lines and self.codes:
            sys.settrace(self._frame)
        try:
            with operators:
                yield
        finally:
            if lines and self.codes:
                sys.settrace(previous)
            self._names = operators.names.hexdigest()[:16]

    def _frame(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in self.codes:
            return None
        self._events -= 1
        return self._line

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        self._events -= 1
        if self._events <= 0:
            # What comes after goes on unwatched.
            sys.settrace(None)
        if event == "line":
            self.reached.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def fingerprint(self) -> str:
        """Equal for calls that dispatched the same operators in the same order."""
        return self._names

    def lines(self) -> list[int]:
        """(reached, all) lines of the function's own Python."""
        return [len(self.reached & self._all()), len(self._all())]

    def missed(self) -> list[int]:
        """Lines never reached, of the file that the function itself stands in."""
        return sorted(line for _, line in self._all() - self.reached)

    def _all(self) -> set[tuple[str, int]]:
        return _lines(frozenset(self.codes))


@functools.cache
def _lines(codes: frozenset[CodeType]) -> set[tuple[str, int]]:
    """Lines of bodies: the line of a `def` is reached by importing, not by calling."""
    return {
        (code.co_filename, line)
        for code in codes
        for _, _, line in code.co_lines()
        if line is not None and line != code.co_firstlineno
    }


def own_functions(function: Callable[..., Any]) -> list[FunctionType]:
    """The function and all it reaches by name within its own module: plain functions, methods, wrapped ones."""
    start = _plain(function)
    found: dict[int, FunctionType] = {}
    waiting = list(start)
    while waiting and len(found) < MOST_FUNCTIONS:
        each = waiting.pop()
        if id(each) in found:
            continue
        found[id(each)] = each
        for code in _nested(each.__code__):
            for name in code.co_names:
                other = each.__globals__.get(name)
                waiting += [one for one in _plain(other) if one.__module__ == each.__module__]
        for cell in each.__closure__ or ():
            with contextlib.suppress(ValueError):
                waiting += _plain(cell.cell_contents)
    return list(found.values())


def _plain(thing: Any) -> list[FunctionType]:
    """The plain functions behind a callable."""
    if isinstance(thing, functools.partial):
        return _plain(thing.func)
    if inspect.ismethod(thing):
        return _plain(thing.__func__)
    if isinstance(thing, (staticmethod, classmethod)):
        return _plain(thing.__func__)
    if isinstance(thing, FunctionType):
        wrapped = getattr(thing, "__wrapped__", None)
        return [thing, *(_plain(wrapped) if wrapped is not None else [])]
    if isinstance(thing, type):
        own = [value for value in vars(thing).values() if isinstance(value, (FunctionType, staticmethod, classmethod))]
        return [function for value in own for function in _plain(value)]
    if isinstance(thing, torch.nn.Module) or (thing is not None and callable(thing) and _of_a_stranger(thing)):
        return _plain(type(thing))
    return []


def _of_a_stranger(thing: Any) -> bool:
    return type(thing).__module__.partition(".")[0] not in ("builtins", "torch", "numpy", "triton", "functools")


def own_codes(function: Callable[..., Any]) -> set[CodeType]:
    """Code of the function's own Python; nothing where it is torch's, or no Python at all."""
    codes: set[CodeType] = set()
    for each in own_functions(function):
        if (each.__module__ or "").partition(".")[0] not in ("torch", "numpy", "samebits"):
            codes |= set(_nested(each.__code__))
    return codes


def _nested(code: CodeType) -> list[CodeType]:
    inner = [each for constant in code.co_consts if isinstance(constant, CodeType) for each in _nested(constant)]
    return [code, *inner]


def numbers(function: Callable[..., Any]) -> list[int]:
    """Whole numbers that the function's own code names: where its author changed his mind."""
    found: set[int] = set()
    for each in own_functions(function):
        for code in _nested(each.__code__):
            found |= _whole(code.co_consts)
            found |= _whole([each.__globals__.get(name) for name in code.co_names])
        found |= _whole(each.__defaults__ or ())
        cells = []
        for cell in each.__closure__ or ():
            with contextlib.suppress(ValueError):
                cells.append(cell.cell_contents)
        found |= _whole(cells)
    return sorted(found)


def counts_axes(function: Callable[..., Any]) -> bool:
    """Whether the function's own code asks how many axes a tensor has, so that its author thought of more than two."""
    return any(AXES & set(code.co_names) for code in own_codes(function))


def _whole(values: Any) -> set[int]:
    whole: set[int] = set()
    for value in values:
        if isinstance(value, (tuple, frozenset, list, set)):
            whole |= _whole(value)
        elif isinstance(value, dict):
            whole |= _whole(list(value)) | _whole(list(value.values()))
        elif isinstance(value, (int, float)) and 2 <= abs(value) <= LARGEST_NUMBER and value == int(value):
            whole.add(abs(int(value)))
    return whole
