"""Which code a contract may name: modules of samebits and of folders that the user trusts; all else is refused.

A contract is a file that anyone may have written, and to import a module is to run it. So where a module would come
from is found out first, without running any of it. Knows no operator."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from samebits.contracts.language import Contract
from samebits.native.sources import PACKAGE


def named_objects(contract: Contract) -> Iterator[tuple[str, str, str]]:
    """(section, id, module:attribute) of everything that a contract names, subjects before what stands in for them."""
    for section, field in (
        ("equations", "reference"),
        ("subjects", "object"),
        ("mutants", "object"),
        ("proofs", "object"),
    ):
        for identifier, entry in getattr(contract, section).items():
            # A proof that is derived from its kind names nothing.
            if getattr(entry, field):
                yield section, identifier, getattr(entry, field)
    for identifier, obligation in contract.obligations.items():
        if ":" in obligation.name:
            yield "obligations", identifier, obligation.name
        if obligation.name == "same":
            yield "obligations", identifier, str(obligation.parameters.get("object"))


def refusal(target: str, trusted: Iterable[Path]) -> str:
    """Why module:attribute may not be imported; empty where it may. Nothing is imported to find out."""
    module = target.partition(":")[0]
    top = module.partition(".")[0]
    folders = [folder.resolve() for folder in trusted]
    try:
        found = importlib.util.find_spec(top) if top.isidentifier() else None
    except (ImportError, ValueError):
        found = None
    if found is None:
        return f"{target} cannot be imported: no module named {top[:60]!r}"
    places = [Path(place).resolve() for place in (*(found.submodule_search_locations or ()), found.origin) if place]
    if top == PACKAGE.name or (places and all(_inside(place, folders) for place in places)):
        return ""
    where = places[0] if places else "the interpreter"
    return (
        f"{target} would import {top!r} from {where}; allowed: modules of samebits, of"
        " --components, or of a folder named by --trust"
    )


def _inside(place: Path, folders: Iterable[Path]) -> bool:
    return any(place.is_relative_to(folder) for folder in folders)


def refuse_untrusted(contracts: Iterable[Contract], trusted: Iterable[Path]) -> None:
    """A ValueError for the first object that may not be imported, before any is."""
    folders = tuple(trusted)
    for contract in contracts:
        for _, identifier, target in named_objects(contract):
            if said := refusal(target, folders):
                raise ValueError(f"{contract.path}: {identifier}: {said}")
