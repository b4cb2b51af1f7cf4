"""What the contract commands share: which rooms there are, and where their receipts lie."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.contracts.store import Store
from samebits.contracts.trusting import refuse_untrusted
from samebits.records.shipped import PACKAGE, checkout, shipped

if TYPE_CHECKING:
    from samebits.contracts.registry import Room

Names = Annotated[list[str] | None, typer.Argument(help="Contracts by name. Default: all.")]
Rooms = Annotated[Path | None, typer.Option("--rooms", help="A folder of your own rooms, instead of samebits' own.")]
Trusted = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust", metavar="DIR", help="A folder whose modules contracts may name; may be given several times."
    ),
]
Receipts = Annotated[Path | None, typer.Option("--receipts", help="Where receipts are kept.")]
Backend = Annotated[str | None, typer.Option(help="cpu or triton. Default: what can run here.")]

# Folders of rooms beside the operators; a room is registered by lying in one of them.
FOLDERS = ("parity.stability", "train")


def known_rooms(folder: Path | None) -> dict[str, Room]:
    """Every room of samebits, or those of a user's folder, which is imported under its own name."""
    # Loaded here: it imports every operator, which `--help` need not wait for.
    from samebits.checker.targets import OPERATORS, Home

    if folder is None:
        homes = (OPERATORS, *(Home(PACKAGE.joinpath(*name.split(".")), f"samebits.{name}") for name in FOLDERS))
        return {name: room for home in homes for name, room in home.rooms().items()}
    where = folder.resolve()
    if not where.is_dir():
        raise ValueError(f"--rooms {folder} is no folder; a folder of rooms is needed")
    sys.path.insert(0, str(where.parent))
    found = Home(where, where.name).rooms()
    if not found:
        raise ValueError(f"--rooms {folder} has no room; a room is a folder with a contract.yaml")
    return found


def trusted_folders(rooms: Path | None, trust: list[Path] | None) -> list[Path]:
    """Folders from which contracts may have modules imported: those that the user names."""
    for folder in trust or ():
        if not folder.is_dir():
            raise ValueError(f"--trust {folder} is no folder; allowed: a folder of modules")
        sys.path.insert(0, str(folder.resolve()))
    return [*(trust or ()), *([] if rooms is None else [rooms])]


def trusted_rooms(rooms: Path | None, trust: list[Path] | None) -> dict[str, Room]:
    """The same as `known_rooms`, for commands that import what contracts name: only from trusted folders."""
    known = known_rooms(rooms)
    if rooms is not None:
        refuse_untrusted((room.contract() for room in known.values()), trusted_folders(rooms, trust))
    return known


def store_of(receipts: Path | None, rooms: Path | None = None, *, writes: bool = False) -> Store:
    """Where receipts are: as asked, else those that come with samebits; outside a checkout one's own rooms keep theirs
    where the command is run, and what was shipped is only read."""
    if receipts is not None:
        return Store(receipts)
    if checkout() is None and rooms is not None:
        return Store(Path("receipts"))
    if checkout() is None and writes:
        raise ValueError(f"{shipped('receipts')} came with samebits and is only read; say --receipts FOLDER")
    return Store(shipped("receipts"))


def chosen(names: list[str] | None, rooms: dict[str, Room]) -> dict[str, Room]:
    from samebits.contracts.registry import nearest

    for name in names or ():
        if name not in rooms:
            raise ValueError(f"no contract is called {name!r}; {nearest(name, list(rooms))}")
    return {name: rooms[name] for name in names} if names else rooms
