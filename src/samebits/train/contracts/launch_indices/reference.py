"""Which kernels there are, read from the sources and from nothing else, and what is to be found of each: nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from samebits.records.shipped import PACKAGE

WAITING: Final = "infer"


def _compiled(file: Path) -> Iterator[ast.FunctionDef]:
    """Functions that Triton or Gluon compiles."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            plain = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
            if any(ast.unparse(each) in ("triton.jit", "gluon.jit") for each in plain):
                yield node


def _others(function: ast.FunctionDef) -> Iterator[str]:
    """Names that a function takes from elsewhere."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    own = {each.arg for each in function.args.args}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    yield from (node.id for node in nodes if isinstance(node, ast.Name) and node.id not in own)
    yield from (node.attr for node in nodes if isinstance(node, ast.Attribute))


@cache
def kernels(package: Path = PACKAGE) -> tuple[str, ...]:
    """Compiled functions that no other one names: those that are launched.

    Kernels of WAITING go on as whole kernels of operators, which are launched by themselves, too."""
    files = [file for file in sorted(package.rglob("*.py")) if "triton" in file.read_text()]
    waiting = [each for file in files if file.is_relative_to(package / WAITING) for each in _compiled(file)]
    found = [each for file in files if not file.is_relative_to(package / WAITING) for each in _compiled(file)]
    return tuple(sorted({*_launched(waiting), *_launched(found)}))


def _launched(found: list[ast.FunctionDef]) -> set[str]:
    return {each.name for each in found} - {name for each in found for name in _others(each)}


def nothing64(parts: Tensor) -> Tensor:
    """No kernel without a launch, no access outside, no buffer too long."""
    return torch.zeros(len(parts), 3, dtype=torch.float64)
