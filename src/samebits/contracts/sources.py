"""What evidence is tied to: the files that a function, a check or a proof reaches, by backend, and a contract's words.

Python imports are followed by their text, C++ by its quoted includes; nothing is executed. What only the other backend
runs is left out, so that a changed C++ file voids nothing of Triton's, nor a Triton file anything of the CPU's; so is
what only another architecture's compiler is given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Final

from samebits.contracts.language import Contract
from samebits.contracts.source_text import CPP, PYTHON, absolute, source_text
from samebits.native.sources import PACKAGE

CONTRACT_FILE: Final = "contract.yaml"
KERNELS: Final = ("cpu_kernel.py", "triton_kernel.py")
# Names of files and folders that only one backend runs.
_CPU_FOLDERS, _TRITON_FOLDERS = ("_cpu", "native"), ("_triton",)
_CPU_NAMES, _TRITON_NAMES = ("cpu_",), ("triton_", "emit_triton", "launch_table")


def only_of(file: Path) -> str:
    """The backend that alone runs a file, or ""."""
    if file.suffix in CPP or file.parent.name in _CPU_FOLDERS or file.name.startswith(_CPU_NAMES):
        return "cpu"
    if file.parent.name in _TRITON_FOLDERS or file.name.startswith(_TRITON_NAMES):
        return "triton"
    return ""


@cache
def has_contract(folder: Path) -> bool:
    return (folder / CONTRACT_FILE).is_file()


@dataclass(eq=False, slots=True)
class _File:
    """A file of a tree, told from others by being itself: to hash and to compare paths is most of a walk's time."""

    path: Path
    only: str
    contract: str
    """Its folder where that is a contract's, or ""."""
    neighbours: list[_File] | None = None
    """What it imports or includes, once that is asked for."""


class Tree:
    """Top-level packages by the folder each is in: within these, imports are followed. Reads each file once.

    C++ is read as one architecture compiles it; without an architecture, all of it."""

    def __init__(self, packages: Mapping[str, Path], architecture: str = "") -> None:
        self.packages = dict(packages)
        self.architecture = architecture
        self._files: dict[Path, _File] = {}

    def reached(
        self,
        modules: Iterable[str],
        backends: Iterable[str],
        *,
        contract: Path | None = None,
        without: frozenset[Path] = frozenset(),
    ) -> set[Path]:
        """The files of these modules and all that they import or include, for these backends.

        With `contract`, no contract's folder but this one is entered; what is in `without` is neither entered nor
        returned."""
        kept, allowed = {"", *backends}, {"", str(contract)}
        files = [file for name in modules for file in self.module(name)]

        def entered(file: _File) -> bool:
            return file.only in kept and (contract is None or file.contract in allowed) and file.path not in without

        return self._closure(files, entered)

    def compiled_by_all(self, package: Path) -> list[Path]:
        """C++ that is compiled into the library and belongs to no contract: headers, threads, elementary functions."""
        found = self._closure(package.glob("**/*.cpp"), lambda file: file.path.suffix in CPP)
        return sorted(file for file in found if not has_contract(file.parent))

    def _closure(self, files: Iterable[Path], entered: Callable[[_File], bool]) -> set[Path]:
        """Files, and all that they import or include, as far as these are entered."""
        waiting, found = [self._file(each) for each in files], set[_File]()
        while waiting:
            file = waiting.pop()
            if file in found or not entered(file):
                continue
            found.add(file)
            if file.neighbours is None:
                file.neighbours = [self._file(each) for each in self._neighbours(file.path)]
            waiting += file.neighbours
        return {file.path for file in found}

    def _file(self, path: Path) -> _File:
        if path not in self._files:
            self._files[path] = _File(path, only_of(path), str(path.parent) if has_contract(path.parent) else "")
        return self._files[path]

    def module(self, name: str) -> Iterator[Path]:
        """The file of "package.module", or of "package:name": the module of that name, or else the package itself."""
        base, _, attribute = name.partition(":")
        top = base.partition(".")[0]
        if top not in self.packages:
            return
        yield from self._around(base.split("."), inner=bool(attribute))
        place = self.packages[top].joinpath(*base.split("."))
        inner = place / attribute
        if attribute and inner.with_suffix(".py").is_file():
            yield inner.with_suffix(".py")
        elif attribute and (inner / "__init__.py").is_file():
            yield inner / "__init__.py"
        elif place.with_suffix(".py").is_file():
            yield place.with_suffix(".py")
        # A top-level package only hands on what lies in it.
        elif base != top and (place / "__init__.py").is_file():
            yield place / "__init__.py"

    def _around(self, parts: list[str], *, inner: bool) -> Iterator[Path]:
        """The packages that a module lies in, whose code runs before its own. Those of samebits only hand on what lies
        in them; of anyone else's nobody knows."""
        if parts[0] == PACKAGE.name:
            return
        for count in range(1, len(parts) + inner):
            package = self.packages[parts[0]].joinpath(*parts[:count]) / "__init__.py"
            if package.is_file():
                yield package

    def _neighbours(self, file: Path) -> Iterator[Path]:
        root = next((each for each in self.packages.values() if file.is_relative_to(each)), file.parent)
        named = source_text(file, self.architecture).names
        if file.suffix in PYTHON:
            parts = file.relative_to(root).with_suffix("").parts
            for name in named:
                yield from self.module(absolute(name, ".".join(parts[:-1])))
            yield from _kernels_beside(file)
            return
        top = root / file.relative_to(root).parts[0]
        for place in (file.parent, top, top / "native" / "include"):
            yield from (place / name for name in named if (place / name).is_file())

    def digest(self, files: Iterable[Path]) -> str:
        """One digest of files, by place and by what each says."""
        lines = []
        for file in files:
            root = next((each for each in self.packages.values() if file.is_relative_to(each)), file.parent)
            lines.append(f"{file.relative_to(root).as_posix()} {source_text(file, self.architecture).digest}")
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _kernels_beside(file: Path) -> Iterator[Path]:
    """What is loaded by name: an operator's kernels when it is first called, and what the CPU's were compiled from."""
    if file.name == "__init__.py" and has_contract(file.parent):
        yield from (beside for beside in map(file.with_name, KERNELS) if beside.is_file())
        yield from sorted(file.parent.glob("*.cpp"))
    elif file.name == "cpu_kernel.py":
        yield from sorted(file.parent.glob("*.cpp"))


def contract_digest(contract: Contract) -> str:
    """SHA-256 of the whole contract, by content: comments and layout do not matter, nor does the level it asks for."""
    document = asdict(contract)
    del document["path"], document["requires_level"]
    return canonical(document)


def obligation_digest(contract: Contract, identifier: str) -> str:
    """SHA-256 of one obligation and of everything in the contract that it rests on."""
    obligation = contract.obligations[identifier]
    subject = contract.subjects[obligation.subject]
    return canonical(
        {
            "numerics": asdict(contract.numerics),
            "obligation": asdict(obligation),
            "subject": asdict(subject),
            "equation": asdict(contract.equations[subject.equation]),
            "domain": asdict(contract.domains[obligation.domain]),
            "tests": {name: asdict(contract.tests[name]) for name in obligation.tests},
            "mutants": {name: asdict(contract.mutants[name]) for name in obligation.mutants},
        }
    )


def canonical(document: object) -> str:
    """SHA-256 of a document of plain values."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
