"""Kernels of the Triton backend as expressions: their source, run in Triton's interpreter on nodes instead of numbers.

This side starts the process that does so, for the interpreter must be chosen before Triton is imported. No GPU needed.
Trusted: that the interpreter's hooks see every operation, that a sum over two elements is one addition, that a matrix
unit adds 16 products of 16-bit operands at a time and float32 one by one, and that the compiler keeps what the source
says (which artifacts.py looks at)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from samebits.contracts.proof import Proof
from samebits.contracts.registry import Component
from samebits.records.packages import lacking

TIMEOUT_SECONDS: Final = 600
VERSION: Final = "3.6"


class TracingError(RuntimeError):
    """The trace could not be carried out at all; one line."""


def require_triton() -> None:
    """One line where Triton is missing, or of a version whose interpreter is not known."""
    try:
        found = version("triton")
    except PackageNotFoundError:
        raise TracingError(str(lacking("tracing", "triton"))) from None
    if not found.startswith(VERSION + "."):
        raise TracingError(f"tracing: triton is {found}; allowed: {VERSION}, whose interpreter is known")


def child_environment() -> dict[str, str]:
    """This process's environment, with what it imports from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}


def asked(*names: str) -> list[dict[str, Any]]:
    """The facts that one tracing process finds about operators, by package, or about kernels as FILE:KERNEL."""
    require_triton()
    try:
        finished = subprocess.run(
            [sys.executable, "-m", "samebits.checker.tracing", *names],
            text=True,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            env={**child_environment(), "TRITON_INTERPRET": "1"},
        )
    except subprocess.TimeoutExpired:
        raise TracingError(f"tracing {' '.join(names)} took more than {TIMEOUT_SECONDS} s") from None
    if finished.returncode != 0:
        last = (finished.stderr.strip().splitlines() or ["without a message"])[-1]
        raise TracingError(f"tracing {' '.join(names)} failed: {last}")
    answer: list[dict[str, Any]] = json.loads(finished.stdout)
    return answer


def rows_proof(component: Component) -> Proof:
    """Every row of an operator's results is one expression, whatever the batch and the launch, and is stored once."""
    return Proof(kind="dag", **asked(component.package)[0])
