"""What a receipt is tied to: the source of a room with all it imports and includes, and the contract's own words.

Python imports are followed by their text, C++ by its quoted includes; nothing is executed. One changed line anywhere in
there is another digest."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

from samebits.contracts.language import Contract

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SOURCES = (".py", ".cpp", ".h")


def source_digest(folder: Path, package: str) -> str:
    """SHA-256 of every file that a room consists of or reaches, by path and content."""
    whole = hashlib.sha256()
    root = top_folder(folder, package)
    for file in sorted(reached(folder, package)):
        name = file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name
        whole.update(f"{name} {_content(file, file.stat().st_mtime_ns)}\n".encode())
    return whole.hexdigest()


@cache
def _content(file: Path, modified: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def reached(folder: Path, package: str) -> set[Path]:
    """The room's own files and, transitively, what of the same top-level package they import or include."""
    root = top_folder(folder, package)
    waiting = [file for file in sorted(folder.iterdir()) if file.suffix in SOURCES]
    found: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        waiting += _neighbours(file, file.stat().st_mtime_ns, root, package.partition(".")[0])
    return found


def top_folder(folder: Path, package: str) -> Path:
    """The folder in which the room's top-level package lies."""
    return folder.parents[package.count(".")] if "." in package else folder.parent


@cache
def _neighbours(file: Path, modified: int, root: Path, top: str) -> list[Path]:
    if file.suffix == ".py":
        return list(_imported(file, root, top))
    text = file.read_text()
    places = (file.parent, root / top, root / top / "native" / "include")
    named = [place / name for name in _INCLUDE.findall(text) for place in places]
    return [path for path in named if path.is_file()]


def _imported(file: Path, root: Path, top: str) -> Iterator[Path]:
    package = ".".join(file.relative_to(root).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.partition(".")[0] == top:
                yield from _module(root, name)


def _module(root: Path, name: str) -> Iterator[Path]:
    """The file of a module. A package's own `__init__` counts only where it is the room's door."""
    place = root.joinpath(*name.split("."))
    if place.with_suffix(".py").is_file():
        yield place.with_suffix(".py")
    elif (place / "contract.yaml").is_file():
        yield from (file for file in sorted(place.iterdir()) if file.suffix in SOURCES)


def contract_digest(contract: Contract) -> str:
    """SHA-256 of the whole contract, by content: comments and layout do not matter."""
    document = asdict(contract)
    del document["path"]
    return _canonical(document)


def obligation_digest(contract: Contract, identifier: str) -> str:
    """SHA-256 of one obligation and of everything in the contract that it rests on."""
    obligation = contract.obligations[identifier]
    subject = contract.subjects[obligation.subject]
    return _canonical({
        "numerics": asdict(contract.numerics), "obligation": asdict(obligation), "subject": asdict(subject),
        "equation": asdict(contract.equations[subject.equation]), "domain": asdict(contract.domains[obligation.domain]),
        "tests": {name: asdict(contract.tests[name]) for name in obligation.tests},
        "mutants": {name: asdict(contract.mutants[name]) for name in obligation.mutants},
    })  # fmt: skip


def _canonical(document: object) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def checker_digest(modules: tuple[str, ...]) -> str:
    """SHA-256 of the named modules' files: what executed the check."""
    whole = hashlib.sha256()
    for name in modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file is None:
            raise ValueError(f"{name} has no file; a receipt needs the source of its checker")
        whole.update(f"{name} {_content(Path(file), Path(file).stat().st_mtime_ns)}\n".encode())
    return whole.hexdigest()
