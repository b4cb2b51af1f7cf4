"""A contract as it is in a file, or as it stood at a revision that git knows: `git:REV` for the same path.

Reads; changes no file and no repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from samebits.contracts.language import Contract
from samebits.contracts.loading import contract_of, load_contract

GIT: Final = "git:"
SECONDS: Final = 30


def two_sides(old: str, new: str) -> tuple[Contract, Contract]:
    """Both contracts. Each side is a file; one of them may be git:REV, and then means the other's file at REV."""
    if old.startswith(GIT) and new.startswith(GIT):
        raise ValueError(f"both sides are revisions, {old} and {new}; allowed: one, the other names the file")
    if old.startswith(GIT):
        return at_revision(Path(new), old.removeprefix(GIT)), load_contract(Path(new))
    if new.startswith(GIT):
        return load_contract(Path(old)), at_revision(Path(old), new.removeprefix(GIT))
    return load_contract(Path(old)), load_contract(Path(new))


def at_revision(path: Path, revision: str) -> Contract:
    """The contract in `path` as it stood at a revision."""
    git = shutil.which("git")
    if git is None:
        raise ValueError(f"git:{revision} needs git, and there is none on the path")
    if not revision or revision.startswith("-"):
        raise ValueError(f"git:{revision} names no revision; allowed: like git:HEAD~1")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ValueError(f"{path}: {folder} is not a folder; git runs in it")
    # "./" makes the name relative to the folder that git is asked from.
    command = [git, "-C", str(folder), "show", f"{revision}:./{path.name}"]
    shown = subprocess.run(command, capture_output=True, timeout=SECONDS)
    if shown.returncode:
        said = " ".join(shown.stderr.decode("utf-8", "replace").split())
        raise ValueError(f"{path} at {revision}: git: {said!r}")
    return contract_of(shown.stdout, Path(f"{GIT}{revision}/{path}"))
