"""Proofs of kind `artifact`: a component's kernels, compiled for sm_90 without a GPU, and what of them decides bits.

`<component>_artifact` shows that one component's artifacts agree over all launches and argument classes, use no float
atomics and only the approximate instructions declared here, and are those recorded. Trusted: ptxas, and that a matrix
unit adds in groups along k. Two components are refused, rightly or not, and have no proof here: attention, whose way
for values that are not finite uses `tl.sum` (only one of the terms is not zero, which an artifact does not show), and
matmul, whose largest tiles add bias and 0 in bfloat16 where the chain is empty.

Compiles in a process of its own; `python -m samebits.checker.artifacts record COMPONENT...` writes the record."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from samebits.checker.artifact_text import Essence
from samebits.checker.tracing import child_environment, require_triton
from samebits.contracts.proof import Proof
from samebits.records.shipped import shipped

RECORD: Final = shipped("goldens") / "artifacts" / "triton_3_6.json"
TIMEOUT_SECONDS: Final = 1200
# Where 16-bit operands leave bits to spare, attention takes the hardware's own power of two.
DECLARED: Final[Mapping[str, frozenset[str]]] = {
    "attention_forward": frozenset({"ex2.approx.f32", "ex2.approx.ftz.f32"})
}


def refusals(kernel: str, essences: Mapping[str, Essence]) -> Iterator[str]:
    """What speaks against a kernel's artifacts, given by their specialisation."""
    for name, found in essences.items():
        if found.atomics:
            yield f"{kernel} ({name}): float atomics {', '.join(found.atomics)}; allowed: none"
        undeclared = set(found.approximations) - DECLARED.get(kernel, frozenset())
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


def compiled(component: str) -> dict[str, dict[str, Essence]]:
    """Kernel and dtypes to specialisation to essence, from a process of its own."""
    require_triton()
    finished = subprocess.run(
        [sys.executable, "-m", "samebits.checker.artifact_process", component],
        text=True,
        capture_output=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
        env=child_environment(),
    )
    if finished.returncode != 0:
        last = (finished.stderr.strip().splitlines() or ["without a message"])[-1]
        raise RuntimeError(f"artifacts of {component}: compiling failed: {last}")
    answer = json.loads(finished.stdout)
    return {kernel: {name: Essence.of(each) for name, each in found.items()} for kernel, found in answer.items()}


def digest_of(found: Mapping[str, Mapping[str, Essence]]) -> str:
    lines = [
        f"{kernel} {name} {each.digest}"
        for kernel, group in sorted(found.items())
        for name, each in sorted(group.items())
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def artifact_proof(component: str) -> Proof:
    """One essence for each kernel over its launches and argument classes; no atomics; as recorded."""
    found = compiled(component)
    witness = next((line for kernel, group in found.items() for line in refusals(kernel.split()[0], group)), "")
    recorded = recording().get(component)
    digest = digest_of(found)
    if not witness and digest != recorded:
        witness = (
            f"{component}: digest {digest[:12]}, recorded {str(recorded)[:12]}; the compiler or a kernel has changed"
        )
    # The record says how many there are: one that is missing, or one too many, gives another digest.
    count = sum(map(len, found.values()))
    planted = twins(found)
    return Proof(
        kind="artifact",
        bound=f"{count} artifacts of {len(found)} kernels and dtypes, sm_90, triton 3.6",
        cases=count,
        expected=count,
        planted=len(planted),
        caught=sum(planted),
        witness=witness,
        digest=digest,
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


def recording() -> dict[str, str]:
    if not RECORD.exists():
        raise RuntimeError(
            f"artifacts: {RECORD} is missing; write it with `python -m samebits.checker.artifacts record`"
        )
    components: dict[str, str] = json.loads(RECORD.read_text())["components"]
    return components


def record(components: tuple[str, ...]) -> None:
    """Writes the digests of these components' artifacts beside those of the others."""
    known = recording() if RECORD.exists() else {}
    for component in components:
        known[component] = digest_of(compiled(component))
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(
            json.dumps({"triton": "3.6", "target": "sm_90", "components": known}, indent=1, sort_keys=True) + "\n"
        )


softmax_artifact = partial(artifact_proof, "softmax")
logprob_artifact = partial(artifact_proof, "logprob")
cross_entropy_artifact = partial(artifact_proof, "logprob")
distill_loss_artifact = partial(artifact_proof, "distill_loss")
rmsnorm_artifact = partial(artifact_proof, "rmsnorm")
swiglu_artifact = partial(artifact_proof, "swiglu")
gelu_artifact = partial(artifact_proof, "gelu")
rope_artifact = partial(artifact_proof, "rope")
adamw_artifact = partial(artifact_proof, "adamw")
grad_norm_artifact = partial(artifact_proof, "grad_norm")
embedding_artifact = partial(artifact_proof, "embedding")

if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "record":
        sys.exit("usage: python -m samebits.checker.artifacts record COMPONENT...")
    record(tuple(sys.argv[2:]))
