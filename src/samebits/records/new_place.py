"""Whether a folder can be made at a place: asked before anything is computed, so that its result has somewhere to go.

Knows no format. What it says may change before the folder is made; who makes it meets that then."""

from __future__ import annotations

import os
from pathlib import Path


def refuse_if_taken(path: Path, option: str = "") -> None:
    """A ValueError in one line where something is at `path`, or where no folder can be made; `option` comes first."""
    said = f"{option} {path}" if option else str(path)
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise ValueError(f"{said}: is there already; allowed: a new folder, or an empty one")
    above = next(each for each in path.absolute().parents if os.path.lexists(each))
    if not above.is_dir():
        raise ValueError(f"{said}: {above} is not a folder; allowed: a new folder within one")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{said}: {above} cannot be written; allowed: a new folder within one that can")
