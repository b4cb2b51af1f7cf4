"""What a source file says, as one digest: comments, docstrings and layout left out, so that evidence outlives a typo.

Python is read as its syntax tree, written in a form that does not depend on the Python version; C++ as cpp_text.py has
it. Nothing is executed."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

from samebits.contracts.cpp_text import INCLUDE, cpp_text

PYTHON, CPP = (".py",), (".cpp", ".h")
_NO_MEANING = ("type_comment", "kind")


@dataclass(frozen=True, slots=True)
class SourceText:
    """One file."""

    digest: str
    names: tuple[str, ...]
    """Python: modules imported anywhere in it, "package:name" for `from package import name`. C++: quoted includes."""


def source_text(file: Path, architecture: str = "") -> SourceText:
    """The digest of what a file says and what it names; read again only where the file has changed.

    With an architecture, of C++ only what is compiled there."""
    return _read(file, file.stat().st_mtime_ns, architecture if file.suffix in CPP else "")


@cache
def _read(file: Path, modified: int, architecture: str) -> SourceText:
    text = file.read_text()
    if file.suffix in PYTHON:
        tree = ast.parse(text)
        # The module's own package is not known here: relative imports keep their dots.
        said, named = list[str](), list[str]()
        _python(tree, said, named)
        return SourceText(_digest("\n".join(said)), tuple(dict.fromkeys(named)))
    compiled = cpp_text(text, architecture)
    return SourceText(_digest(compiled), tuple(INCLUDE.findall(compiled)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _python(node: ast.AST, said: list[str], named: list[str]) -> None:
    """A node by its kind and what is set in it, and what it imports. Fields that are empty are left out: versions of
    Python add some."""
    said.append(type(node).__name__)
    if isinstance(node, ast.Import | ast.ImportFrom):
        named += _imported(node)
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            said.append(name)
            _python(value, said, named)
        elif isinstance(value, list):
            for each in value:
                if not isinstance(each, ast.AST):
                    said.append(f"{name}[{each!r}]")
                elif not _says_nothing(each, node):
                    said.append(name)
                    _python(each, said, named)
        elif value is not None and name not in _NO_MEANING:
            said.append(f"{name}={type(value).__name__} {value!r}")
    said.append(".")


def _says_nothing(node: ast.AST, within: ast.AST) -> bool:
    """A statement that is a text and no more: a docstring, wherever it stands. Or the empty piece that some versions of
    Python put into an f-string."""
    if isinstance(within, ast.JoinedStr):
        return isinstance(node, ast.Constant) and node.value == ""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = "." * node.level + (node.module or "")
    return [f"{base}:{alias.name}" for alias in node.names]


def absolute(name: str, package: str) -> str:
    """A name of `SourceText.names` without leading dots, as seen from a package."""
    base, colon, attribute = name.partition(":")
    return f"{resolve_name(base, package)}{colon}{attribute}" if base.startswith(".") else name
