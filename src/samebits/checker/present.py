"""What decides a verdict, as it is here and now: the digests and versions that a receipt is made with and held against.

Knows no operator and runs no obligation."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from samebits import native
from samebits.checker import environment
from samebits.checker.source_facts import RUNNING, SHORT, SourceFacts
from samebits.contracts.ladder import backends_of
from samebits.contracts.language import ProofEntry
from samebits.contracts.receipts import WHOLE, Facts, Receipt
from samebits.contracts.registry import Component
from samebits.records.shipped import PACKAGE

VERSIONS: Final = {
    "types": ("mypy",),
    "examples": ("torch", "numpy"),
    "draws": ("torch", "numpy"),
    "enumeration": ("torch", "numpy"),
    "order": ("torch", "numpy"),
    "integers": ("z3-solver",),
    "dag": ("triton", "torch", "numpy"),
    "artifact": ("triton",),
}
"""Packages whose version may decide a verdict, beside Python's own."""


def where(backend: str, method: str) -> dict[str, str]:
    """Machine, versions, compiler and library, as far as they decide."""
    found: dict[str, str] = {}
    backends = backend.split(", ") if method in RUNNING else []
    if "cpu" in backends:
        found |= _processor()
    if "triton" in backends:
        found |= {"gpu": environment.gpu(), "triton": environment.installed("triton")}
    found |= {package: environment.installed(package) for package in VERSIONS[method]}
    return {**found, "python": ".".join(platform.python_version_tuple()[:2])}


def _processor() -> dict[str, str]:
    machine = {"architecture": environment.architecture(), "processor": environment.processor()}
    if environment.native_problem():
        return {**machine, "instruction sets": "none", "compiler": "none", "library": "none"}
    return {
        **machine,
        "instruction sets": " ".join(native.instruction_sets()),
        "compiler": native.compiler(),
        "library": native.library_digests()[1][:SHORT],
    }


class Present:
    """The present of several contracts."""

    def __init__(self, components: Mapping[str, Component], package: Path = PACKAGE) -> None:
        self.components = dict(components)
        self.package = package
        self._known: dict[tuple[str, ...], Facts] = {}
        self._sources: dict[str, SourceFacts] = {}
        self._where: dict[tuple[str, str], dict[str, str]] = {}

    def of(self, receipt: Receipt) -> Facts | None:
        """What a receipt is held against; None where the contract asks for no such thing any more."""
        if receipt.contract not in self.components:
            return None
        component = self.components[receipt.contract]
        contract = component.contract()
        architecture = receipt.where.get("architecture", "")
        whole = receipt.obligation == WHOLE
        if not whole and receipt.obligation not in contract.obligations:
            return None
        if receipt.backend not in (contract.backends if whole else backends_of(contract, receipt.obligation)):
            return None
        if whole:
            return self.facts(component, WHOLE, receipt.backend, "types", architecture=architecture)
        entry = None
        if receipt.level == 4:
            declared = contract.proofs_of(receipt.obligation, receipt.backend).values()
            entry = next((each for each in declared if (each.kind, each.by) == (receipt.method, receipt.by)), None)
            if entry is None:
                return None
        return self.facts(
            component, receipt.obligation, receipt.backend, receipt.method, entry, architecture=architecture
        )

    def facts(
        self,
        component: Component,
        identifier: str,
        backend: str,
        method: str,
        proof: ProofEntry | None = None,
        *,
        architecture: str | None = None,
    ) -> Facts:
        """What a run of this obligation would be tied to, had it been made now: here, or on a named architecture."""
        surroundings = self._surroundings(backend, method)
        if architecture is None:
            architecture = surroundings.get("architecture", "")
        key = (component.name, identifier, backend, method, proof.by if proof else "", architecture)
        if key not in self._known:
            sources = self._compiled_for(architecture)
            self._known[key] = Facts(
                sources={
                    name: value[:SHORT]
                    for name, value in sources.sources(component, identifier, backend, method, proof).items()
                },
                dependencies=sources.dependencies(component.contract(), backend) if method != "types" else {},
                where=surroundings,
            )
        return self._known[key]

    def _compiled_for(self, architecture: str) -> SourceFacts:
        if architecture not in self._sources:
            self._sources[architecture] = SourceFacts(self.components, self.package, architecture)
        return self._sources[architecture]

    def _surroundings(self, backend: str, method: str) -> dict[str, str]:
        if (backend, method) not in self._where:
            self._where[backend, method] = where(backend, method)
        return self._where[backend, method]
