"""Where the files lie that come with samebits beside its code: recipes, receipts and goldens.

In a checkout, installed from it or not, they are the folders at its top; in a wheel they lie inside the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = ("goldens", "receipts", "recipes")
# Where the build puts these folders in a wheel; CMakeLists.txt says the same.
INSIDE: Final = "_data"


def checkout() -> Path | None:
    """The top of the checkout that this package is used from; None where it was installed from a wheel."""
    top = PACKAGE.parent.parent
    return top if PACKAGE.parent.name == "src" and (top / "pyproject.toml").is_file() else None


def shipped(folder: str) -> Path:
    """One of the folders."""
    if folder not in FOLDERS:
        raise ValueError(f"no folder {folder!r} comes with samebits; allowed: {', '.join(FOLDERS)}")
    return (checkout() or PACKAGE / INSIDE) / folder


def recipe(named: Path) -> Path:
    """The file that a command was given: a path, or the name of a shipped recipe, `tiny` or `recipes/tiny.yaml`.

    A file that is there always goes first."""
    if named.is_file():
        return named
    folder = shipped("recipes")
    bare = named.parent == Path(".") and not named.suffix
    found = folder / (f"{named.name}.yaml" if bare else named.name)
    if (bare or named.parent == Path("recipes")) and found.is_file():
        return found
    if bare:
        known = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise ValueError(f"{named} is neither a file nor a shipped recipe; shipped: {known}")
    return named
