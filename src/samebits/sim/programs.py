"""A user's program as a function of the rank: a file that is run as `__main__`, or a function of a module.

Each rank of a file has its own `__main__`; modules that it imports are shared, as threads share them."""

from __future__ import annotations

import builtins
import importlib
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ALLOWED = "a file.py, or module:function that takes the rank"


def program_of(target: str) -> Callable[[int], Any]:
    """What every rank calls with its number. ValueError where there is no such program."""
    if target.endswith(".py"):
        if not Path(target).is_file():
            raise ValueError(f"sim: {target} is no file; allowed: {ALLOWED}")
        return _script(Path(target).resolve())
    name, colon, function = target.partition(":")
    if not colon or not name or not function:
        raise ValueError(f"sim: program is {target!r}; allowed: {ALLOWED}")
    if name.endswith(".py"):
        return _member_of_file(Path(name), function)
    with _loading(f"module {name!r} cannot be imported"):
        module = importlib.import_module(name)
    return _callable(getattr(module, function, None), target)


def _script(path: Path) -> Callable[[int], Any]:
    """Not by runpy, which puts a module into sys.modules for a while: ranks would take each other's out."""
    with _loading(f"{path} cannot be read"):
        code = compile(path.read_bytes(), str(path), "exec")

    def run(rank: int) -> None:
        exec(code, {"__name__": "__main__", "__file__": str(path), "__builtins__": builtins})

    return run


def _member_of_file(path: Path, function: str) -> Callable[[int], Any]:
    if not path.is_file():
        raise ValueError(f"sim: {path} is no file; allowed: {ALLOWED}")
    with _loading(f"{path} cannot be imported"):
        found = runpy.run_path(str(path), run_name=path.stem)
    return _callable(found.get(function), f"{path}:{function}")


@contextmanager
def _loading(what: str) -> Iterator[None]:
    """Whatever a stranger's file does wrong while it is read is the caller's mistake, told in a line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        place = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"sim: {what}: {type(error).__name__}: {said}{place}; allowed: {ALLOWED}") from error


def _callable(found: Any, target: str) -> Callable[[int], Any]:
    if not callable(found):
        raise ValueError(f"sim: {target} is no function; allowed: {ALLOWED}")
    call: Callable[[int], Any] = found
    return call


@contextmanager
def command_line(target: str, words: Sequence[str]) -> Iterator[None]:
    """sys.argv as the program expects it, and its folder where it finds its modules; for all ranks alike."""
    before, path = sys.argv, list(sys.path)
    sys.argv = [target, *words]
    if target.endswith(".py"):
        sys.path.insert(0, str(Path(target).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path
