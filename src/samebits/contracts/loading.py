"""Loads a contract: structure first, then every word and every id. Whatever cannot be executed is an error with a line.

Knows no operator; which predicates and recipes exist is said by the layers that have them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from samebits.contracts.language import (
    BACKENDS,
    FORMATS,
    PROMISES,
    TOLERANCES,
    Contract,
    Document,
    Domain,
    Obligation,
    ProofEntry,
    Tolerance,
    example_of,
)
from samebits.contracts.orders import ORDERS
from samebits.contracts.predicates import PREDICATES
from samebits.contracts.proof import DERIVED, KINDS
from samebits.contracts.standard import STANDARD, expanded, standard_ids
from samebits.contracts.strict_yaml import Located, parse, read
from samebits.contracts.structure import Place, build
from samebits.numerics.recipes import RECIPES

# What an id of each section looks like after the contract's own prefix.
IDS: Final = {"equations": "EQ", "subjects": "S", "domains": "D", "obligations": "OB", "mutants": "MU", "proofs": "PR"}
BOUNDS: Final = ("order", "sum", "dot", "sum1", "softmax", "lse", "rms", "rope", "kl", "slerp", "store", "stat")
"""Bounds that follow from the order or the formats, never from a guess."""
DEMANDED: Final = 10_000
"""Calls on distinct cases that level 3 asks for."""
MOST_AXES: Final = 8
"""A draw lists every size of every axis, so a file must not name axes without end."""
_NAME = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
# A name, or one function applied to another.
_OBJECT = re.compile(rf"{_NAME}(?:\({_NAME}\))?", re.ASCII)


def load_contract(path: Path) -> Contract:
    """The contract in `path`; anything unknown, missing, dangling or unused is a ContractError with its line."""
    return contract_of(read(path), path)


def contract_of(raw: bytes, path: Path) -> Contract:
    """The contract that `raw` spells: a file of another revision, say. `path` is where it stands, for its errors."""
    document = parse(raw, path)
    written = build(Document, document, Place(path, 1))
    _check_standard(written, document, path)
    whole = expanded(written)
    contract = Contract(path=path, **{each.name: getattr(whole, each.name) for each in fields(Document)})
    _Checker(contract, document).check()
    return contract


def _check_standard(written: Document, document: Located, path: Path) -> None:
    """That `standard` names subjects and promises, and that what it stands for is not written out as well."""
    for subject, promises in written.standard.items():
        place = Place(path, document["standard"].lines.get(subject, 1), subject)
        if subject not in written.subjects:
            raise place.fail(f"{subject!r} is not an id of subjects; known: {', '.join(written.subjects)}")
        for promise, domain in promises.items():
            if promise not in STANDARD:
                raise place.fail(f"unknown standard promise {promise!r}; known: {', '.join(STANDARD)}")
            if domain not in written.domains:
                raise place.fail(f"{domain!r} is not an id of domains; known: {', '.join(written.domains)}")
    for section in ("obligations", "tests", "mutants"):
        twice = (getattr(written, section).keys() & standard_ids(written)) if written.standard else set()
        for identifier in sorted(twice):
            raise Place(path, document[section].lines[identifier], identifier).fail("is a standard promise's id")
    for identifier, mutant in written.mutants.items():
        if mutant.breaks is not None and mutant.breaks not in written.standard.get(mutant.of, {}):
            place = Place(path, document["mutants"].lines[identifier], identifier)
            raise place.fail(f"breaks {mutant.breaks!r}, which {mutant.of} does not promise under standard")


class _Checker:
    """Every name means something, every id is used, and every word is known."""

    def __init__(self, contract: Contract, document: Located) -> None:
        self.contract, self.document, self.used = contract, document, set[str]()

    def check(self) -> None:
        self._head()
        for section in (*IDS, "tests"):
            self._ids(section)
        self._subjects()
        for identifier, domain in self.contract.domains.items():
            self._domain(identifier, domain)
        for identifier, obligation in self.contract.obligations.items():
            self._obligation(identifier, obligation)
        self._tests()
        self._mutants_and_proofs()
        self._everything_is_used()

    def _place(self, section: str, identifier: str) -> Place:
        lines = self.document[section].lines if section in self.document else {}
        return Place(self.contract.path, lines.get(identifier, 1), identifier)

    def _head(self) -> None:
        contract, lines = self.contract, self.document.lines

        def expect(key: str, good: bool, message: str) -> None:
            if not good:
                raise Place(contract.path, lines.get(key, 1)).fail(message)

        for key, pattern, allowed in (
            ("contract", r"[a-z][a-z0-9_]*", "small letters, digits and _"),
            ("prefix", r"[A-Z][A-Z0-9]*", "capitals and digits"),
            ("version", r"[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}", "1.0.0"),
        ):
            value = getattr(contract, key)
            expect(key, re.fullmatch(pattern, value) is not None, f"{key} must look like {allowed}, got {value!r}")
        required = contract.requires_level
        levels = [required] if isinstance(required, int) else list(required.values())
        expect(
            "requires_level",
            all(0 <= level <= 4 for level in levels),
            f"requires_level is {_shown(required)}; allowed: 0 to 4",
        )
        expect(
            "requires_level",
            isinstance(required, int) or set(required) == set(contract.backends),
            f"requires_level is {_shown(required)}; allowed: a level for each of {', '.join(contract.backends)}",
        )
        expect("depends_on", len(set(contract.depends_on)) == len(contract.depends_on), "depends_on names one twice")
        for name in contract.depends_on:
            expect("depends_on", re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None, f"depends_on: {name!r} is no name")

    def _ids(self, section: str) -> None:
        pattern = (
            r"FALSIFY-[A-Z0-9_-]*[0-9]{3}"
            if section == "tests"
            else rf"{self.contract.prefix}-{IDS[section]}[1-9][0-9]*"
        )
        for identifier in getattr(self.contract, section):
            if re.fullmatch(pattern, identifier, re.ASCII) is None:
                raise self._place(section, identifier).fail(f"an id of {section} must look like {pattern}")

    def _refer(self, section: str, identifier: str, place: Place) -> None:
        known = getattr(self.contract, section)
        if identifier not in known:
            raise place.fail(f"{identifier!r} is not an id of {section}; known: {', '.join(known)}")
        self.used.add(identifier)

    @staticmethod
    def _one_of(what: str, value: Any, allowed: tuple[str, ...], place: Place) -> None:
        if value not in allowed:
            raise place.fail(f"unknown {what} {value!r}; known: {', '.join(allowed)}")

    @staticmethod
    def _object(value: str, place: Place) -> None:
        if _OBJECT.fullmatch(value) is None:
            raise place.fail(f"{value!r} is not importable; expected module:attribute")

    def _subjects(self) -> None:
        for identifier, equation in self.contract.equations.items():
            self._object(equation.reference, self._place("equations", identifier))
        for identifier, subject in self.contract.subjects.items():
            place = self._place("subjects", identifier)
            self._refer("equations", subject.equation, place)
            self._object(subject.object, place)
            for backend, orders in subject.orders.items():
                self._one_of("backend", backend, BACKENDS, place)
                for format_name, order in orders.items():
                    self._one_of("format", format_name, FORMATS, place)
                    self._one_of("order", order, tuple(ORDERS), place)

    def _domain(self, identifier: str, domain: Domain) -> None:
        place = self._place("domains", identifier)
        for format_name in domain.formats:
            self._one_of("format", format_name, FORMATS, place)
        for recipe in (*domain.recipes, *domain.draw.recipes):
            self._one_of("recipe", recipe, RECIPES, place)
        if len(domain.draw.sizes) > MOST_AXES:
            raise place.fail(f"draw has {len(domain.draw.sizes)} sizes; allowed: {MOST_AXES}, one an axis")
        try:
            axes = domain.draw.axes()
        except ValueError as error:
            raise place.fail(str(error)) from error
        for shape in domain.shapes:
            if len(shape) != len(axes) or min(shape) < 1:
                raise place.fail(f"shape {shape} does not fit {len(axes)} sizes of at least 1")
        if not all(0 <= seed < 2**31 for seed in domain.seeds):
            raise place.fail(f"seeds are {domain.seeds}; allowed: 0 to 2^31-1")
        if domain.draw.calls < DEMANDED:
            raise place.fail(f"draw.calls is {domain.draw.calls}; level 3 asks for {DEMANDED} at least")

    def _obligation(self, identifier: str, obligation: Obligation) -> None:
        place = self._place("obligations", identifier)
        if not obligation.subject:
            raise place.fail(f"key 'subject' is missing; expected one of {', '.join(self.contract.subjects)}")
        self._refer("subjects", obligation.subject, place)
        self._refer("domains", obligation.domain, place)
        for mutant in obligation.mutants:
            self._refer("mutants", mutant, place)
            if self.contract.mutants[mutant].of != obligation.subject:
                raise place.fail(f"{mutant} is planted in {self.contract.mutants[mutant].of}, not {obligation.subject}")
        if not obligation.tests:
            raise place.fail("no test names it; expected at least one")
        for test in obligation.tests:
            self._refer("tests", test, place)
            if self.contract.tests[test].obligation != identifier:
                raise place.fail(f"{test} is a test of {self.contract.tests[test].obligation}")
        name = obligation.predicate.get("name")
        if not isinstance(name, str):
            raise place.fail("predicate has no name")
        if ":" in name:
            self._object(name, place)
        else:
            self._one_of("predicate", name, (*PROMISES, *PREDICATES), place)
        for key, value in obligation.parameters.items():
            if isinstance(value, (Located, list)):
                raise place.fail(f"parameter {key!r} of {name} must be a scalar")
        _check_tolerance(obligation.tolerance, place)
        if name in PROMISES and (obligation.tolerance.kind == "bitwise") == (name == "accuracy"):
            raise place.fail(f"tolerance of {name} is {obligation.tolerance.kind}; only accuracy is not bitwise")

    def _tests(self) -> None:
        for identifier, test in self.contract.tests.items():
            place = self._place("tests", identifier)
            self._refer("obligations", test.obligation, place)
            axes = len(self.contract.domains[self.contract.obligations[test.obligation].domain].draw.sizes)
            for text in test.examples:
                try:
                    shape, recipe, format_name, _ = example_of(text)
                except ValueError as error:
                    raise place.fail(str(error)) from error
                self._one_of("recipe", recipe, RECIPES, place)
                self._one_of("format", format_name, FORMATS, place)
                if len(shape) != axes or min(shape) < 1:
                    raise place.fail(f"example {text!r} has {len(shape)} sizes; allowed: {axes} of at least 1")

    def _mutants_and_proofs(self) -> None:
        for identifier, mutant in self.contract.mutants.items():
            self._refer("subjects", mutant.of, self._place("mutants", identifier))
            self._object(mutant.object, self._place("mutants", identifier))
        for identifier, proof in self.contract.proofs.items():
            place = self._place("proofs", identifier)
            self._one_of("kind of proof", proof.kind, KINDS, place)
            for obligation in proof.obligations:
                self._refer("obligations", obligation, place)
            self._proof_backends(proof, place)
            self._proof_object(proof, place)
            self.used.add(identifier)

    def _proof_object(self, proof: ProofEntry, place: Place) -> None:
        """A kind that is derived names no function, every other kind names one."""
        if proof.kind in DERIVED and proof.object:
            raise place.fail(f"a proof of kind {proof.kind} is derived from triton_cases.py; it names no object")
        if proof.kind not in DERIVED:
            if not proof.object:
                raise place.fail(f"key 'object' is missing; a proof of kind {proof.kind} needs one")
            self._object(proof.object, place)

    def _proof_backends(self, proof: ProofEntry, place: Place) -> None:
        """A proof speaks for backends that all its obligations are about; what is derived is about Triton's kernels."""
        for backend in proof.backends:
            self._one_of("backend", backend, BACKENDS, place)
        if len(set(proof.backends)) < len(proof.backends):
            raise place.fail(f"backends is {', '.join(proof.backends)}; allowed: each once")
        if proof.kind in DERIVED and proof.backends != ["triton"]:
            raise place.fail(f"backends of kind {proof.kind} is {', '.join(proof.backends)}; allowed: triton")
        for obligation in proof.obligations:
            orders = self.contract.subjects[self.contract.obligations[obligation].subject].orders
            for backend in proof.backends:
                if backend not in orders:
                    raise place.fail(f"{obligation} has no backend {backend!r}; allowed: {', '.join(orders)}")

    def _everything_is_used(self) -> None:
        for section in ("equations", "subjects", "domains", "tests", "mutants"):
            for identifier in getattr(self.contract, section):
                if identifier not in self.used:
                    raise self._place(section, identifier).fail("is never used")


def _shown(required: int | dict[str, int]) -> str:
    if isinstance(required, int):
        return str(required)
    return ", ".join(f"{backend} {level}" for backend, level in required.items())


def _check_tolerance(tolerance: Tolerance, place: Place) -> None:
    if tolerance.kind not in TOLERANCES:
        raise place.fail(f"unknown tolerance {tolerance.kind!r}; known: {', '.join(TOLERANCES)}")
    given = {key for key in ("value", "to", "bound", "why") if getattr(tolerance, key) is not None}
    needed = set(TOLERANCES[tolerance.kind])
    if given != needed:
        wanted = ", ".join(sorted(needed)) or "nothing else"
        raise place.fail(
            f"a tolerance of kind {tolerance.kind} needs {wanted}, got {', '.join(sorted(given)) or 'nothing'}"
        )
    if tolerance.bound is not None and tolerance.bound not in BOUNDS:
        raise place.fail(f"unknown bound {tolerance.bound!r}; known: {', '.join(BOUNDS)}")
    value = tolerance.value
    if value is not None and not 0 <= value < float("inf"):
        raise place.fail(f"tolerance is {value}; allowed: finite, at least 0")
