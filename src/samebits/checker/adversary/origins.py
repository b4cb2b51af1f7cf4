"""Where a function comes from, so that another process can have it: an import path, a file, a pickle, or a fork.

Nothing of a stranger's is imported here unless it already is."""

from __future__ import annotations

import base64
import importlib.util
import inspect
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.checker.targets import importable_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """How a process gets the function. Exactly one of the ways is set, or none: then only a fork can have it."""

    name: str
    """What reports call it."""
    path: str = ""
    """module:attribute, or an import path with dots."""
    file: str = ""
    attribute: str = ""
    pickled: str = ""
    function: Callable[..., Any] | None = None
    """The function itself, where this process has it already."""

    @property
    def command(self) -> str:
        """What `samebits check` takes, or ""."""
        return self.path or (f"{self.file}:{self.attribute}" if self.file else "")

    @property
    def forks(self) -> bool:
        return not (self.path or self.file or self.pickled)


def origin_of_text(text: str) -> Origin:
    """`mypkg.mod:fn`, `torch.nn.functional.linear`, `./file.py:fn`; a file that is missing is a ValueError."""
    file, colon, attribute = text.rpartition(":")
    if colon and (file.endswith(".py") or os.sep in file):
        place = Path(file)
        if not place.is_file():
            raise ValueError(f"{text!r}: no file {file!r}; a function in a file is named like ./file.py:fn")
        if not all(part.isidentifier() for part in attribute.split(".")):
            raise ValueError(f"{text!r}: {attribute!r} is not a name; name a function in a file like ./file.py:fn")
        return Origin(name=text, file=file, attribute=attribute)
    if text.endswith(".py"):
        raise ValueError(f"{text!r} names no function; a function in a file is named like {text}:fn")
    return Origin(name=text, path=text)


def origin_of(function: Callable[..., Any]) -> Origin:
    """The surest way by which another process can have a function that this one has."""
    name = importable_name(function)
    shown = name.replace(":", ".") or getattr(function, "__name__", "") or repr(function)
    if name and _found_again(name.partition(":")[0]):
        return Origin(name=shown, path=name, function=function)
    file = _own_file(function)
    if file:
        return Origin(name=shown, file=file, attribute=function.__qualname__, function=function)
    pickled = _pickled(function)
    if pickled:
        return Origin(name=shown, pickled=pickled, function=function)
    return Origin(name=shown, function=function)


def _found_again(module: str) -> bool:
    """Whether an import in a fresh process with this one's path finds the file that is loaded here."""
    loaded = sys.modules[module]
    specification = getattr(loaded, "__spec__", None)
    if specification is None or specification.name != module:
        return False
    if specification.origin in (None, "built-in", "frozen"):
        return True
    try:
        return _finds(module, specification.origin)
    except (ImportError, ValueError, AttributeError):
        return False


def _finds(module: str, file: str) -> bool:
    parent = module.rpartition(".")[0]
    places = list(sys.modules[parent].__path__) if parent else None
    for finder in sys.meta_path:
        found = finder.find_spec(module, places) if hasattr(finder, "find_spec") else None
        if found is not None:
            return found.origin is not None and Path(found.origin) == Path(file)
    return False


def _own_file(function: Callable[..., Any]) -> str:
    """The file of a plain function that its module's top level names, where only the file can be loaded again."""
    if not inspect.isfunction(function) or "<" in function.__qualname__ or function.__module__ == "__main__":
        return ""
    file = function.__globals__.get("__file__")
    known: Any = function.__globals__
    first, *rest = function.__qualname__.split(".")
    known = known.get(first)
    for part in rest:
        known = getattr(known, part, None)
    return str(file) if known is function and file and str(file).endswith(".py") and Path(file).is_file() else ""


def _pickled(function: Callable[..., Any]) -> str:
    """Callable objects and partials of what is importable; nothing that lives in __main__."""
    try:
        text = pickle.dumps(function)
    except Exception:  # whatever __reduce__ raises: it cannot be sent, which is no finding
        return ""
    return "" if b"__main__" in text else base64.b64encode(text).decode()


class ImportFailedError(Exception):
    """A function that is there and cannot be imported; `usage` says that there is none of that name."""

    def __init__(self, text: str, *, usage: bool = False) -> None:
        super().__init__(text)
        self.usage = usage


def load(origin: dict[str, str]) -> Callable[..., Any]:
    """The function, in the process made for it. Runs a stranger's module."""
    if origin["pickled"]:
        found: Any = pickle.loads(base64.b64decode(origin["pickled"]))
    elif origin["file"]:
        found = _from_file(Path(origin["file"]).resolve(), origin["attribute"])
    else:
        found = _from_path(origin["path"])
    if not callable(found):
        raise ImportFailedError(f"{origin['name']!r} is {type(found).__name__}; a function is needed", usage=True)
    return found  # type: ignore[no-any-return]


def _from_file(file: Path, attribute: str) -> Any:
    sys.path.insert(0, str(file.parent))
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    specification.loader.exec_module(module)
    return _attribute(module, attribute, f"{file.name}:{attribute}")


def _from_path(text: str) -> Any:
    module_name, colon, attribute = text.partition(":")
    parts = text.split(".")
    candidates = (
        [(module_name, attribute)]
        if colon
        else [(".".join(parts[:cut]), ".".join(parts[cut:])) for cut in range(len(parts) - 1, 0, -1)]
    )
    for name, rest in candidates:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module missing on the way means "look elsewhere"; one that the module lacks stops it.
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
            continue
        return _attribute(module, rest, text)
    raise ImportFailedError(f"{text!r} cannot be imported: no module named {candidates[-1][0]!r}", usage=True)


def _attribute(module: Any, attribute: str, text: str) -> Any:
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ImportFailedError(f"{text!r} cannot be imported: {module.__name__} has no {attribute!r}", usage=True)
        found = getattr(found, part)
    return found
