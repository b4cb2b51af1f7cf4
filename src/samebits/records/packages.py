"""Packages that only some commands need: imported when used, and one line says what installs a missing one.

What everything needs is among the dependencies; each name here belongs to an extra of pyproject.toml."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

EXTRAS: Final = {
    "mypy": "contracts",
    "triton": "contracts",
    "z3": "contracts",
    "pyarrow": "data",
    "prometheus_client": "serve",
    "opentelemetry": "trace",
    "tensorboard": "trace",
    "starlette": "serve",
    "uvicorn": "serve",
    "gguf": "transformers",
    "transformers": "transformers",
}
"""Import name to extra."""


class MissingPackageError(RuntimeError):
    """A package is not here, so that nothing can be judged; one line."""


def lacking(what: str, package: str) -> MissingPackageError:
    """The error that names what needs a package, and the line that installs it."""
    return MissingPackageError(f"{what} needs the package {package!r}, which is not installed; {remedy(package)}")


def remedy(package: str) -> str:
    return f"pip install samebits[{EXTRAS[package]}]"


def require(what: str, package: str) -> None:
    """Raises where a package is missing; imports nothing."""
    if find_spec(package) is None:
        raise lacking(what, package)


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Around imports of packages that may be missing; what no extra brings is raised as it is."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise lacking(what, package) from error
