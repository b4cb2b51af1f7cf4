"""Reads contracts, files or folders of them, and says all that is wrong: with each, and between them.

Loads and compares; imports what they name only when asked to, and calls none of it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.contracts.graph import Graph, node_of
from samebits.contracts.language import Contract
from samebits.contracts.loading import IDS, load_contract
from samebits.contracts.registry import CONTRACT_FILE
from samebits.contracts.strict_yaml import ContractError, Located, load
from samebits.contracts.trust import named_objects, refusal

_ID = re.compile(r"(?:[A-Z][A-Z0-9]*-[A-Z]+[0-9]+|FALSIFY-[A-Z0-9_-]+)(?=: )", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    path: Path
    line: int
    id: str
    """Of the obligation, mutant and so on; empty where the file as a whole is meant."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {f'{self.id}: ' if self.id else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A contract with the lines of its file."""

    contract: Contract
    document: Located

    def problem(self, section: str, identifier: str, message: str) -> Problem:
        part = self.document.get(section)
        lines = part.lines if isinstance(part, Located) and identifier else self.document.lines
        line = lines.get(identifier or section, self.document.lines.get(section, 1))
        return Problem(path=self.contract.path, line=line, id=identifier, message=message)


def validate(
    paths: Sequence[Path], *, deep: bool = False, known: Iterable[str] = (), trusted: Iterable[Path] | None = None
) -> list[Problem]:
    """All problems of the contracts in `paths`, in order; an empty list says that there is none.

    `known` names contracts elsewhere that these may depend on. `deep` imports every object they name, of samebits
    and of `trusted` folders; None: of any, for a caller who wrote the contracts."""
    folders = None if trusted is None else tuple(trusted)
    problems: list[Problem] = []
    loaded: list[_Loaded] = []
    for path in paths:
        if not path.exists():
            problems.append(Problem(path=path, line=1, id="", message="there is no such file or folder"))
    files = contract_files(paths)
    if not files:
        where = paths[0] if paths else Path()
        problems.append(Problem(path=where, line=1, id="", message=f"no contract here; a {CONTRACT_FILE} is needed"))
    for file in files:
        try:
            loaded.append(_Loaded(load_contract(file), load(file)))
        except ContractError as error:
            problems.append(_problem_of(error, file))
    problems += _repeated(loaded)
    problems += [problem for each in loaded for problem in _named_twice(each)]
    problems += _connections(loaded, set(known))
    if deep:
        problems += [problem for each in loaded for problem in _objects(each, folders)]
    return problems


def contract_files(paths: Iterable[Path]) -> list[Path]:
    """The files meant: a file itself, a folder's contracts at whatever depth; each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        for file in sorted(path.rglob(CONTRACT_FILE)) if path.is_dir() else [path] if path.exists() else []:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _problem_of(error: ContractError, file: Path) -> Problem:
    """The parts of a loader's line: file, line, id, message."""
    said = str(error).removeprefix(str(file))
    at = re.match(r":([0-9]+): ", said)
    message = said[at.end() :] if at else said.removeprefix(": ")
    identifier = _ID.match(message)
    if identifier:
        message = message[identifier.end() + 2 :]
    return Problem(path=file, line=int(at[1]) if at else 1, id=identifier[0] if identifier else "", message=message)


def _repeated(loaded: Sequence[_Loaded]) -> Iterator[Problem]:
    """Names, prefixes and ids belong to one contract each."""
    first: dict[tuple[str, str], Path] = {}
    for each in loaded:
        contract = each.contract
        names = [("contract", "", contract.contract), ("prefix", "", contract.prefix)]
        names += [(section, name, name) for section in (*IDS, "tests") for name in getattr(contract, section)]
        for section, identifier, name in names:
            word = section if not identifier else "id"
            before = first.setdefault((word, name), contract.path)
            if before != contract.path:
                yield each.problem(section, identifier, f"{word} {name!r} is in {before} as well")


def _named_twice(each: _Loaded) -> Iterator[Problem]:
    """A list that names one thing twice counts it twice: faults that were killed, receipts of a proof."""
    for section, keys in (("obligations", ("tests", "mutants")), ("proofs", ("obligations", "backends"))):
        for identifier, entry in getattr(each.contract, section).items():
            for key in keys:
                names = list(getattr(entry, key))
                for name in dict.fromkeys(name for name in names if names.count(name) > 1):
                    yield each.problem(section, identifier, f"{key} names {name!r} twice")


def _connections(loaded: Sequence[_Loaded], known: set[str]) -> Iterator[Problem]:
    """Dependencies lead to contracts and never back."""
    by_name = {each.contract.contract: each for each in loaded}
    for each in by_name.values():
        for name in each.contract.depends_on:
            if name not in by_name and name not in known:
                yield each.problem("depends_on", "", f"depends_on names {name!r}, which is no contract")
    for cycle in Graph(node_of(each.contract) for each in by_name.values()).cycles():
        yield by_name[cycle[0]].problem("depends_on", "", f"depends_on comes back: {' -> '.join(cycle)}")


def _objects(each: _Loaded, trusted: tuple[Path, ...] | None) -> Iterator[Problem]:
    """Every object that is named exists and can be called; no mutant is its subject, and no reference is one."""
    contract, subjects, references = each.contract, dict[str, Any](), dict[str, Any]()
    for section, identifier, target in named_objects(contract):
        if trusted is not None and (said := refusal(target, trusted)):
            yield each.problem(section, identifier, said)
            continue
        try:
            found = find_object(target)
        except ValueError as error:
            yield each.problem(section, identifier, str(error))
            continue
        if not callable(found):
            yield each.problem(section, identifier, f"{target} is {type(found).__name__}; a function is needed")
        if section == "equations":
            references[identifier] = found
        if section == "subjects":
            subjects[identifier] = found
            if references.get(equation := contract.subjects[identifier].equation) is found:
                message = f"{target} is the subject {identifier} itself; a reference must be written apart from it"
                yield each.problem("equations", equation, message)
        if section == "mutants" and subjects.get(contract.mutants[identifier].of) is found:
            yield each.problem(section, identifier, f"{target} is its subject itself; a mutant must differ from it")


def find_object(target: str) -> Any:
    """What module:attribute names, or f(g) of two such; a ValueError in one line says what is missing."""
    if target.endswith(")"):
        outer, _, inner = target[:-1].partition("(")
        return find_object(outer)(find_object(inner))
    module, _, attributes = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{target} cannot be imported: {type(error).__name__}: {said}") from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise ValueError(f"{target} does not exist: {module} has no {attributes!r}")
        found = getattr(found, attribute)
    return found
