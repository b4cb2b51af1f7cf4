"""What Triton code may not say: a unary minus, which Triton computes as a subtraction from +0, so that -(+0) is +0."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import samebits

PACKAGE = Path(samebits.__file__).resolve().parent
FILES = sorted(
    file
    for folder in ("ops", "numerics", "parity")
    for file in PACKAGE.glob(f"{folder}/**/*.py")
    if any(decorator in file.read_text() for decorator in ("triton.jit", "gluon.jit"))
)
PLANTED = """
@triton.jit
def kernel(x_ptr):
    return tl.fma(-tl.load(x_ptr), 2.0, -1.0)
"""


def compiles(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith(("triton.jit", "gluon.jit"))


def minus_signs(source: str) -> Iterator[str]:
    """Lines of device functions with a minus before anything but a constant."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or not any(map(compiles, function.decorator_list)):
            continue
        for node in ast.walk(function):
            minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
            if minus and any(isinstance(part, ast.Name) for part in ast.walk(node)):
                yield f"{function.name}, line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_no_device_function_negates(file: Path) -> None:
    assert not list(minus_signs(file.read_text()))


def test_a_planted_minus_is_found() -> None:
    assert list(minus_signs(PLANTED)) == ["kernel, line 4: -tl.load(x_ptr)"]
