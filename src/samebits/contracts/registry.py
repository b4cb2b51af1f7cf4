"""Finds contracts beside what they bind: a folder with a `contract.yaml` is a component, and that is its registration.

Knows no operator and imports none; whoever owns a folder of components hands it in."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from samebits.contracts.language import Contract
from samebits.contracts.loading import load_contract

CONTRACT_FILE = "contract.yaml"


@dataclass(frozen=True, slots=True)
class Component:
    """One folder that is bound by a contract, and the package under which its modules can be imported."""

    name: str
    folder: Path
    package: str

    @property
    def root(self) -> Path:
        """The folder in which the top-level package lies."""
        return self.folder.parents[self.package.count(".")]

    def contract(self) -> Contract:
        """The component's contract, loaded and checked; a ContractError says what is wrong with it."""
        return _loaded(self.folder / CONTRACT_FILE)


@cache
def _loaded(path: Path) -> Contract:
    return load_contract(path)


def components(folder: Path, package: str) -> dict[str, Component]:
    """Every component in `folder`, sorted by name, so that neither import order nor environment decides what is
    found."""
    if not folder.is_dir():
        raise ValueError(f"components: {folder} is not a folder; pass a folder of components")
    names = sorted(file.parent.name for file in folder.glob(f"*/{CONTRACT_FILE}"))
    return {name: Component(name, folder / name, f"{package}.{name}") for name in names}


def nearest(name: str, known: list[str]) -> str:
    """A hint for a name that was not found: what was probably meant, and what there is."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"{f'did you mean {close[0]!r}? ' if close else ''}known: {', '.join(known)}"
