"""Proofs of kind `artifact`: an operator's kernels, compiled for sm_90 without a GPU, and what of them decides bits.

Shows that the artifacts of the calls in its `triton_cases.py` agree over all launches and argument classes, use no
float atomics and only the approximate instructions declared there, and are those recorded. Trusted: ptxas, and that a
matrix unit adds in groups along k. Not every operator can be shown so, rightly or not: a
`tl.sum` of which only one term is not zero is refused, for an artifact does not show that, and so is a tile that adds
bias and 0 in bfloat16 where the chain is empty. Such an operator declares no proof of this kind.

Compiles in a process of its own; `python -m samebits.checker.artifacts record OPERATOR...` writes the record."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from samebits.checker.artifact_text import Essence
from samebits.checker.targets import OPERATORS
from samebits.checker.tracing import VERSION, child_environment, require_triton
from samebits.contracts.proof import Proof
from samebits.contracts.registry import Component

RECORD: Final = "artifacts.json"
"""Beside the operator's contract: the digest that its artifacts had."""
TIMEOUT_SECONDS: Final = 1200


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiling process found of one operator."""

    artifacts: Mapping[str, Mapping[str, Essence]]
    """Kernel and dtypes to specialisation to essence."""
    declared: Mapping[str, frozenset[str]]
    """By kernel, the approximate instructions that the operator declares."""

    @property
    def digest(self) -> str:
        lines = [
            f"{kernel} {name} {each.digest}"
            for kernel, group in sorted(self.artifacts.items())
            for name, each in sorted(group.items())
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def refusals(self) -> Iterator[str]:
        for kernel, group in self.artifacts.items():
            name = kernel.split()[0]
            yield from refusals(name, group, self.declared.get(name, frozenset()))


def refusals(kernel: str, essences: Mapping[str, Essence], declared: frozenset[str] = frozenset()) -> Iterator[str]:
    """What speaks against a kernel's artifacts, given by their specialisation; `declared` approximations do not."""
    for name, found in essences.items():
        if found.atomics:
            yield f"{kernel} ({name}): float atomics {', '.join(found.atomics)}; allowed: none"
        undeclared = set(found.approximations) - declared
        if undeclared:
            yield f"{kernel} ({name}): {', '.join(sorted(undeclared))} is approximate and not declared"
        if found.fusion:
            yield f"{kernel} ({name}): compiled with enable_fp_fusion=True; allowed: False"
        ordered = [line for line in found.reductions if " axis " in line]
        if ordered:
            yield f"{kernel} ({name}): the compiler orders {ordered[0]}"
    first = next(iter(essences))
    for name, found in essences.items():
        if found.digest != essences[first].digest:
            yield f"{kernel}: ({name}) and ({first}) decide bits differently: {difference(found, essences[first])}"


def difference(one: Essence, other: Essence) -> str:
    for field in Essence.__slots__:
        mine, theirs = getattr(one, field), getattr(other, field)
        if mine != theirs:
            return f"{field} {mine!r} against {theirs!r}"
    return "nothing"


def compiled(component: Component) -> Compiled:
    """What an operator's kernels become, from a process of its own."""
    require_triton()
    finished = subprocess.run(
        [sys.executable, "-m", "samebits.checker.artifact_process", component.package],
        text=True,
        capture_output=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        env=child_environment(),
    )
    if finished.returncode != 0:
        last = (finished.stderr.strip().splitlines() or ["without a message"])[-1]
        raise RuntimeError(f"artifacts of {component.name}: compiling failed: {last}")
    answer = json.loads(finished.stdout)
    return Compiled(
        {
            kernel: {name: Essence.of(each) for name, each in group.items()}
            for kernel, group in answer["artifacts"].items()
        },
        {kernel: frozenset(each) for kernel, each in answer["declared"].items()},
    )


def artifact_proof(component: Component) -> Proof:
    """One essence for each kernel over its launches and argument classes; no atomics; as recorded."""
    found = compiled(component)
    witness = next(found.refusals(), "")
    recorded = recorded_digest(component)
    if not witness and found.digest != recorded:
        witness = (
            f"{component.name}: digest {found.digest[:12]}, recorded {recorded[:12]};"
            " the compiler or a kernel has changed"
        )
    # The record says how many there are: one that is missing, or one too many, gives another digest.
    count = sum(map(len, found.artifacts.values()))
    planted = twins(found.artifacts)
    return Proof(
        kind="artifact",
        bound=f"{count} artifacts of {len(found.artifacts)} kernels and dtypes, sm_90, triton 3.6",
        cases=count,
        expected=count,
        planted=len(planted),
        caught=sum(planted),
        witness=witness,
        digest=found.digest,
    )


def twins(found: Mapping[str, Mapping[str, Essence]]) -> list[bool]:
    """The first kernel with an atomic, an undeclared approximation, fusion, a sum over a layout: each is refused."""
    kernel, group = next(iter(found.items()))
    name, honest = next(iter(group.items()))
    changes: list[dict[str, Any]] = [
        {"atomics": ("red.global.add.f32",)},
        {"approximations": ("rcp.approx.f32",)},
        {"fusion": True},
        {"reductions": ("arith.addf 4x256xf32 axis 1 #blocked",)},
        {"arithmetic": (*honest.arithmetic, "mad.f32")},
    ]
    fields = {field: getattr(honest, field) for field in Essence.__slots__}
    return [
        bool(list(refusals(kernel.split()[0], {name: honest, "twin": Essence(**{**fields, **change})})))
        for change in changes
    ]


def recorded_digest(component: Component) -> str:
    """The digest that an operator's artifacts had when they were last looked at; one line where none is kept."""
    file = component.folder / RECORD
    if not file.is_file():
        command = f"python -m samebits.checker.artifacts record {component.name}"
        raise RuntimeError(f"artifacts: {file} is missing; write it with `{command}`")
    digest: str = json.loads(file.read_text())["digest"]
    return digest


def record(component: Component) -> None:
    """Writes the digest of an operator's artifacts beside its contract."""
    facts = {"digest": compiled(component).digest, "target": "sm_90", "triton": VERSION}
    (component.folder / RECORD).write_text(json.dumps(facts) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "record":
        sys.exit("usage: python -m samebits.checker.artifacts record OPERATOR...")
    for name in sys.argv[2:]:
        record(OPERATORS.components()[name])
