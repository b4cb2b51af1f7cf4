"""Calls that hand the sizes of a product to its kernel by position, read from the sources: which size comes when.

On one side is the kernel's own declaration, in C++ or Triton, on the other the call, where a size is known by the axes
in the name of the tensor that it is taken from (`a_MK`). Runs no kernel."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from samebits.records.shipped import PACKAGE

AXES: Final = {"m": "M", "rows": "M", "n": "N", "columns": "N", "k": "K", "depth": "K", "v": "V", "vocabulary": "V"} | {
    "t": "T",
    "e": "E",
    "experts": "E",
    "C": "N",
}
"""The axis that a size is of, by its name in a declaration or a call. A chunk (C) of a vocabulary is its columns."""
_DECLARED: Final = re.compile(r"SAMEBITS_EXPORT int32_t SAMEBITS_NAME\((\w+)\)\(([^)]*)\)")
_NAMED: Final = re.compile(r"_([A-Z]+)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """One call, and what its kernel declares."""

    where: str
    declared: tuple[str, ...]
    handed: tuple[str, ...]
    """Axes, in order."""


def axis(name: str) -> str:
    return AXES.get(name, name if name in AXES.values() else "")


def _known(names: Iterator[str] | list[str]) -> tuple[str, ...]:
    return tuple(found for name in names if (found := axis(name)))


def _declared_in_cpp(folder: Path) -> dict[str, tuple[str, ...]]:
    """Sizes that functions of the library take."""
    text = (folder / "cpu_kernel.cpp").read_text()
    listed = (
        (name, [each.split() for each in inside.split(",") if "*" not in each])
        for name, inside in _DECLARED.findall(text)
    )
    return {name: _known([words[-1] for words in each]) for name, each in listed}


@cache
def _declared_in_triton(folder: Path) -> dict[str, tuple[str, ...]]:
    """Sizes that kernels take, and nothing that is known when they are compiled."""
    functions = (
        node
        for file in sorted(folder.glob("triton_*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    )
    return {each.name: _known([argument.arg for argument in each.args.args]) for each in functions}


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    """Names bound to sizes: (name, axis)."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, other in zip(target.elts, value.elts, strict=True):
            yield from _unpacked(each, other)
    elif isinstance(target, ast.Tuple):
        yield from zip((each.id for each in target.elts if isinstance(each, ast.Name)), _axes(value, {}), strict=False)
    elif isinstance(target, ast.Name) and not isinstance(value, ast.Name):
        # Names that change places stand for the transposed product, whose sizes they are.
        yield from ((target.id, each) for each in _axes(value, {})[:1])


def _axes(value: ast.expr, bound: dict[str, str]) -> list[str]:
    """The axes of what is handed over; of what is no size, none."""
    if isinstance(value, ast.Starred):
        return _axes(value.value, bound)
    if isinstance(value, ast.Tuple):
        return [each for element in value.elts for each in _axes(element, bound)]
    if isinstance(value, ast.Name):
        return [bound[value.id]] if value.id in bound else list(_known([value.id]))
    if (
        isinstance(value, ast.Subscript)
        and isinstance(value.slice, ast.Constant)
        and isinstance(value.slice.value, int)
    ):
        return _axes(value.value, bound)[value.slice.value :][:1]
    if isinstance(value, ast.Attribute) and value.attr == "shape" and isinstance(value.value, ast.Name):
        named = _NAMED.search(value.value.id)
        return [axis(each) or each for each in named[1]] if named else []
    return []


def _calls(function: ast.FunctionDef, declared: dict[str, tuple[str, ...]], place: str) -> Iterator[Site]:
    """The calls of `run` in a function whose kernel takes sizes."""
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    bound = {name: each for node in assigned for name, each in _unpacked(node.targets[0], node.value)}
    tuples = {
        node.targets[0].id: node.value
        for node in assigned
        if isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Tuple)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run":
            first, values = node.args[0], [_laid_out(each, tuples) for each in node.args[1:]]
            name = str(first.value) if isinstance(first, ast.Constant) else ast.unparse(first)
            handed = tuple(each for value in values for each in _axes(value, bound))
            if name in declared:
                yield Site(where=f"{place}, {name}", declared=declared[name], handed=handed)


def _laid_out(value: ast.expr, tuples: dict[str, ast.Tuple]) -> ast.expr:
    """Tuples that have names, by what is in them. The number of programs is no size."""
    if isinstance(value, ast.Starred):
        return _laid_out(value.value, tuples)
    if isinstance(value, ast.Name) and value.id in tuples:
        return _laid_out(tuples[value.id], tuples)
    if isinstance(value, ast.Tuple):
        return ast.Tuple(elts=[_laid_out(each, tuples) for each in value.elts], ctx=ast.Load())
    return value


def sites(edit: Callable[[str, str], str] = lambda place, text: text) -> list[Site]:
    """Every call of kernels of operators that multiply over a depth. `edit` is handed each file's place and text."""
    found: list[Site] = []
    for folder in (file.parent for file in sorted(PACKAGE.glob("ops/*/cpu_kernel.cpp"))):
        library = _declared_in_cpp(folder)
        if not any("K" in sizes for sizes in library.values()):
            continue
        declared = library | _declared_in_triton(folder)
        for file in sorted(folder.glob("*.py")):
            place = f"{folder.name}/{file.name}"
            tree = ast.parse(edit(place, file.read_text()))
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                    found += _calls(node, declared, place)
    return found


def out_of_place(parts: Tensor, *, edit: Callable[[str, str], str] = lambda place, text: text) -> Tensor:
    """(parts, 2), the calls dealt out to the parts: all, and those whose sizes come in another order than declared."""
    found = torch.zeros(len(parts), 2, dtype=torch.int64)
    for number, site in enumerate(sites(edit)):
        found[number % len(parts)] += torch.tensor([1, site.declared != site.handed])
    return found
