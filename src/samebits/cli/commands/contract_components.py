"""What the contract commands share: which components there are, and where their receipts lie."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.contracts.store import Store
from samebits.contracts.trust import refuse_untrusted
from samebits.records.shipped import PACKAGE, checkout, shipped

if TYPE_CHECKING:
    from samebits.contracts.registry import Component

Names = Annotated[list[str] | None, typer.Argument(help="Contracts by name. Default: all.")]
Components = Annotated[
    Path | None, typer.Option("--components", help="A folder of your own components, instead of samebits' own.")
]
Trusted = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust", metavar="DIR", help="A folder whose modules contracts may name; may be given several times."
    ),
]
Receipts = Annotated[Path | None, typer.Option("--receipts", help="Where receipts are kept.")]
Backend = Annotated[str | None, typer.Option(help="cpu or triton. Default: what can run here.")]

# Folders of components beside the operators; a component is registered by lying in one of them.
FOLDERS = ("ops.contracts", "model.contracts", "train.contracts", "infer.contracts", "post.contracts")


def known_components(folder: Path | None) -> dict[str, Component]:
    """Every component of samebits, or those of a user's folder, which is imported under its own name."""
    # Loaded here: it imports every operator, which `--help` need not wait for.
    from samebits.checker.targets import OPERATORS, Home

    if folder is None:
        homes = (OPERATORS, *(Home(PACKAGE.joinpath(*name.split(".")), f"samebits.{name}") for name in FOLDERS))
        return {name: component for home in homes for name, component in home.components().items()}
    where = folder.resolve()
    if not where.is_dir():
        raise ValueError(f"--components {folder} is not a folder; pass a folder of components")
    sys.path.insert(0, str(where.parent))
    found = Home(where, where.name).components()
    if not found:
        raise ValueError(f"--components {folder} has no component; a component is a folder with a contract.yaml")
    for name, component in found.items():
        # Receipts and dependencies go by the folder's name.
        contract = component.contract()
        if contract.contract != name:
            raise ValueError(f"{contract.path}: contract is {contract.contract!r}; allowed: {name!r}, as its folder")
    return found


def trusted_folders(components: Path | None, trust: list[Path] | None) -> list[Path]:
    """Folders from which contracts may have modules imported: those that the user names."""
    for folder in trust or ():
        if not folder.is_dir():
            raise ValueError(f"--trust {folder} is not a folder; pass a folder of modules")
        sys.path.insert(0, str(folder.resolve()))
    return [*(trust or ()), *([] if components is None else [components])]


def trusted_components(components: Path | None, trust: list[Path] | None) -> dict[str, Component]:
    """The same as `known_components`, for commands that import what contracts name: only from trusted folders."""
    known = known_components(components)
    if components is not None:
        refuse_untrusted((component.contract() for component in known.values()), trusted_folders(components, trust))
    return known


def launch_by_python() -> None:
    """Here and in processes that this one starts: receipts are not tied to the C++ that can launch calls on a GPU."""
    import samebits

    os.environ[samebits.LAUNCH_VARIABLE] = "0"
    samebits.launch_in_cpp(mode=False)


def store_of(receipts: Path | None, components: Path | None = None, *, writes: bool = False) -> Store:
    """Where receipts are: as asked, else those that come with samebits; outside a checkout one's own components keep
    theirs where the command is run, and what was shipped is only read."""
    if receipts is not None:
        return Store(receipts)
    if checkout() is None and components is not None:
        return Store(Path("receipts"))
    if checkout() is None and writes:
        raise ValueError(f"{shipped('receipts')} is read-only (shipped with samebits); pass --receipts FOLDER")
    return Store(shipped("receipts"))


def chosen(names: list[str] | None, components: dict[str, Component]) -> dict[str, Component]:
    from samebits.contracts.registry import nearest

    for name in names or ():
        if name not in components:
            raise ValueError(f"no contract is called {name!r}; {nearest(name, list(components))}")
    return {name: components[name] for name in names} if names else components
