"""Sources that decide a verdict, by digest: kernel, shared C++, inputs, check, checker and the contract's words.

C++ counts as one architecture compiles it. Everything is gathered once, for reading every source takes a while."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from samebits import native
from samebits.checker import environment
from samebits.checker.promises import MODULES
from samebits.contracts.language import Contract, ProofEntry
from samebits.contracts.registry import Component
from samebits.contracts.sources import Tree, canonical, contract_digest, obligation_digest
from samebits.native.sources import build_digest

RUNNING: Final = ("examples", "draws", "enumeration", "order")
"""Methods that run the kernels: machine and library decide. The others look at sources or at compiled text."""
SHORT: Final = 32
"""Hexadecimal digits of a digest that a receipt keeps."""
# What carries out a proof whose contract names no function.
_PROVERS = {"dag": ("samebits.checker.tracing",), "artifact": ("samebits.checker.artifacts",)}
# What runs a check without being imported by it.
_PROCESSES = {"dag": ("samebits.checker.tracing.__main__",), "artifact": ("samebits.checker.artifact_process",)}
_CHECKERS = {"types": (), "examples": ("samebits.checker.falsification",), "draws": ("samebits.checker.streaming",)}
_GENERATORS = {"examples": ("samebits.checker.cases",), "draws": ("samebits.checker.cases", "samebits.checker.drawing")}


def module_of(importable: str) -> str:
    """The module of "module:attribute"."""
    return importable.partition(":")[0]


def _flags() -> str:
    # Told by the sources where they are there: receipts speak of these, whatever a library was built from.
    return build_digest() or ("" if environment.native_problem() else native.build_digest())


class SourceFacts:
    """The digests of several contracts' sources, as one architecture compiles them; "" for all that is written."""

    def __init__(self, components: Mapping[str, Component], package: Path, architecture: str) -> None:
        self.components = components
        packages = {component.package.partition(".")[0]: component.root for component in components.values()}
        self.tree = Tree({**packages, "samebits": package.parent}, architecture)
        self._kernels: dict[tuple[str, str], frozenset[Path]] = {}
        self._reached: dict[tuple[tuple[str, ...], str, str], frozenset[Path]] = {}
        self._digests: dict[frozenset[Path], str] = {}
        self._shared = frozenset(self.tree.compiled_by_all(package))
        self._flags = _flags()
        self._build = frozenset({package / "native" / "sources.py"})
        self._below: dict[tuple[str, str], str] = {}
        self._words: dict[tuple[str, str], str] = {}

    def sources(
        self, component: Component, identifier: str, backend: str, method: str, proof: ProofEntry | None
    ) -> dict[str, str]:
        """One obligation's, by the names that a receipt has for them."""
        digest = self._digest
        kernel = self._kernel(component, backend)
        if method == "types":
            return {"kernel": digest(kernel | self._own(component, backend))}
        found = {"kernel": digest(kernel), "contract": self._contract(component, identifier, proof)}
        if "cpu" in backend.split(", ") and method in (*RUNNING, "integers"):
            found["headers"] = digest(self._shared)
        if "cpu" in backend.split(", ") and method in RUNNING:
            found["flags"] = self._flags
        generator: frozenset[Path] = frozenset()
        if method in _GENERATORS:
            specs = f"{component.package}.check"
            generator = self._reach((specs, "samebits.numerics.recipes", *_GENERATORS[method]), backend)
            generator = generator - kernel - self._shared
            found["generator"] = digest(generator)
        roots = _CHECKERS.get(method) or ("samebits.contracts.proof", *_PROCESSES.get(method, ()))
        checker = _unless_judges(self._reach(roots, backend, own=component)) - kernel - generator - self._shared
        promise = self._promise(component, identifier, backend, proof) - kernel - generator - checker - self._shared
        return {**found, "promise": digest(promise), "checker": digest(checker)}

    def _promise(
        self, component: Component, identifier: str, backend: str, proof: ProofEntry | None
    ) -> frozenset[Path]:
        """What judges: the check or the proof, the reference, the planted faults."""
        contract = component.contract()
        if proof is not None:
            # What a component's own function imports is its own affair; what the checker runs enters no other folder.
            own = module_of(proof.object).startswith(f"{component.package}.")
            provers = (module_of(proof.object),) if proof.object else _PROVERS[proof.kind]
            reached = self._reach(provers, backend, own=None if own else component)
            return reached | self._own(component, backend)
        obligation = contract.obligations[identifier]
        if ":" in obligation.name:
            judges = self._reach((module_of(obligation.name),), backend)
        else:
            # The fresh process of `repeat` can import every operator and runs this one.
            named = MODULES.get(obligation.name, ("samebits.contracts.predicates",))
            judges = self._reach(named, backend, own=component)
        reference = contract.equations[contract.subjects[obligation.subject].equation].reference
        others = [reference, *(contract.mutants[mutant].object for mutant in obligation.mutants)]
        return judges | self._reach(map(module_of, others), backend)

    def _reach(self, modules: Iterable[str], backend: str, own: Component | None = None) -> frozenset[Path]:
        """Files of modules and their imports; with `own`, no contract's folder but that of this one is entered."""
        key = (tuple(modules), backend, own.name if own else "")
        if key not in self._reached and len(key[0]) > 1:
            # Many obligations name the same few modules: what each reaches is found once.
            self._reached[key] = frozenset().union(*(self._reach([each], backend, own) for each in key[0]))
        elif key not in self._reached:
            folder = own.folder if own else None
            found = self.tree.reached(key[0], backend.split(", "), contract=folder, without=self._build)
            self._reached[key] = frozenset(found)
        return self._reached[key]

    def _kernel(self, component: Component, backend: str) -> frozenset[Path]:
        """What runs when the contract's subjects are called; C++ that all kernels share is told apart."""
        key = (component.name, backend)
        if key not in self._kernels:
            subjects = sorted({module_of(each.object) for each in component.contract().subjects.values()})
            self._kernels[key] = self._reach(subjects, backend) - self._shared
        return self._kernels[key]

    def _own(self, component: Component, backend: str) -> frozenset[Path]:
        """All of a contract's own Python, with what it imports."""
        files = sorted(component.folder.glob("*.py"))
        names = [f"{component.package}.{file.stem}" if file.stem != "__init__" else component.package for file in files]
        return self._reach(names, backend)

    def _digest(self, files: frozenset[Path]) -> str:
        if files not in self._digests:
            self._digests[files] = self.tree.digest(files)
        return self._digests[files]

    def _contract(self, component: Component, identifier: str, proof: ProofEntry | None) -> str:
        """The contract's words about an obligation, or about what a proof says of it."""
        key = (component.name, identifier)
        if key not in self._words:
            self._words[key] = obligation_digest(component.contract(), identifier)
        if proof is None:
            return self._words[key]
        # Which other obligations it speaks for is no part of what it says about this one.
        return canonical([self._words[key], proof.kind, sorted(proof.backends), proof.by])

    def dependencies(self, contract: Contract, backend: str) -> dict[str, str]:
        """Every contract below this one, with one digest of its words and its code."""
        found: dict[str, str] = {}
        waiting = list(contract.depends_on)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            if name not in self.components:
                raise ValueError(f"{contract.path}: depends_on names {name!r}, which no contract is called")
            below = self.components[name]
            if (name, backend) not in self._below:
                code = self._digest(self._kernel(below, backend))
                self._below[name, backend] = canonical([contract_digest(below.contract()), code])[:SHORT]
            found[name] = self._below[name, backend]
            waiting += below.contract().depends_on
        return found


def _unless_judges(files: frozenset[Path]) -> frozenset[Path]:
    """Without the promises' own modules: each receipt is tied to the one that judged it."""
    return frozenset(file for file in files if file.parent.name != "promises" or file.name == "__init__.py")
