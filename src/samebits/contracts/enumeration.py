"""Proof by enumeration: every member of a finite set goes through the real function and past the contract's predicates.

Knows no operator. A set comes in chunks, a chunk's rows are its members. A twin is the same walk with a planted fault
in the function's place; it counts only if the walk stops at something that does not hold."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from samebits.contracts.call import Call, Inputs, Recorder
from samebits.contracts.language import Contract
from samebits.contracts.orders import sum_error
from samebits.contracts.predicates import PREDICATES
from samebits.contracts.proof import Proof
from samebits.contracts.spec import Arguments, OperatorSpec
from samebits.numerics.bits import compare, numpy_bits

DEVICES = {"cpu": "cpu", "triton": "cuda"}
_backend: ContextVar[str] = ContextVar("backend", default="cpu")
"""Where enumerations run: on the CPU, which every machine has, unless a proof is about Triton's kernels."""

# What one obligation says of one call: what is wrong, or "".
Judge: TypeAlias = Callable[[Call], str]


def backend() -> str:
    """The backend whose code is enumerated now."""
    return _backend.get()


def by_triton(proof: Callable[..., Proof], **parameters: Any) -> Callable[[], Proof]:
    """The same proof about Triton's kernels, which needs a GPU: its members and what judges them lie there."""

    def proved() -> Proof:
        if not torch.cuda.is_available():
            raise ValueError("could not be judged: the kernels run on a CUDA GPU and none is visible")
        token = _backend.set("triton")
        try:
            shown = proof(**parameters)
        finally:
            _backend.reset(token)
        return replace(shown, bound=f"{shown.bound}, on {torch.cuda.get_device_name()}")

    return proved


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Some members of the set, handed over in one call."""

    arguments: Arguments
    format: str
    members: int


def enumerated(
    contract: Contract,
    spec: OperatorSpec,
    chunks: Callable[[], Iterator[Chunk]],
    judges: Mapping[str, Judge],
    twins: Mapping[str, Sequence[str]],
    *,
    expected: int,
    bound: str,
) -> Proof:
    """Every chunk through the one subject of these obligations. `twins`: by obligation, mutants that must be refuted.

    `expected` is computed by the caller from the set's definition, not by walking it."""
    (name,) = {contract.obligations[identifier].subject for identifier in judges}
    said = hashlib.sha256()
    record = partial(_recorder, contract, spec, name)
    cases, witness = _walk(record(contract.subjects[name].object), chunks(), judges, said.update)
    planted = [(identifier, mutant) for identifier, mutants in twins.items() for mutant in mutants]
    caught = 0
    for identifier, mutant in planted if not witness else ():
        recorder = record(contract.mutants[mutant].object)
        caught += bool(_walk(recorder, chunks(), {identifier: judges[identifier]}, lambda _: None)[1])
    return Proof(
        kind="enumeration",
        bound=bound,
        cases=cases,
        expected=expected,
        planted=len(planted),
        caught=caught,
        witness=witness,
        digest=said.hexdigest(),
    )


def same_on_both(
    contract: Contract,
    spec: OperatorSpec,
    identifier: str,
    chunks: Callable[[], Iterator[Chunk]],
    *,
    expected: int,
    bound: str,
) -> Proof:
    """The promise `device` for every member: the CPU's bits, forward and backward, are those of the GPU."""
    if not torch.cuda.is_available():
        raise ValueError("could not be judged: CPU and CUDA are compared and no CUDA GPU is visible")
    obligation, said = contract.obligations[identifier], hashlib.sha256()
    record = partial(_recorder, contract, spec, obligation.subject)
    cases, witness = _both_walks(record(contract.subjects[obligation.subject].object), chunks(), said.update)
    caught = 0
    for mutant in obligation.mutants if not witness else ():
        caught += bool(_both_walks(record(contract.mutants[mutant].object), chunks(), lambda _: None)[1])
    return Proof(
        kind="enumeration",
        bound=f"{bound}, on the CPU and on {torch.cuda.get_device_name()}",
        cases=cases,
        expected=expected,
        planted=len(obligation.mutants),
        caught=caught,
        witness=witness,
        digest=said.hexdigest(),
    )


def _both_walks(recorder: Recorder, chunks: Iterable[Chunk], digest: Callable[[bytes], None]) -> tuple[int, str]:
    """(members seen, the first difference between the two)."""
    cases = 0
    for number, chunk in enumerate(chunks):
        sides: list[dict[str, Tensor]] = []
        for device in DEVICES.values():
            given = {name: value.to(device) for name, value in chunk.arguments.items()}
            inputs = Inputs(shape=(chunk.members,), recipe="enumerated", format=chunk.format, seed=number)
            call = recorder.record(inputs, given)
            # A cotangent that both sides have, bit for bit: the outputs are compared first.
            dy = sides[0]["output"].to(device).nan_to_num() + 0.5 if sides else call.output.nan_to_num() + 0.5
            gradients = call.gradients(dy) if recorder.differentiable else {}
            sides.append({name: value.cpu() for name, value in {"output": call.output, **gradients}.items()})
        for name, value in sides[0].items():
            differs = compare(value, sides[1][name])
            if differs is not None:
                return cases, f"chunk {number}: {name}: CPU against CUDA: {differs}"
            digest(numpy_bits(value.contiguous()).tobytes())
        cases += chunk.members
    return cases, ""


def predicate_of(contract: Contract, identifier: str) -> Judge:
    """The obligation's own predicate, with its tolerance and parameters."""
    obligation = contract.obligations[identifier]
    predicate = PREDICATES.get(obligation.name) or _imported(obligation.name)
    return lambda call: str(predicate(call, obligation.tolerance, **obligation.parameters))


def within_its_bound(spec: OperatorSpec, call: Call) -> str:
    """The promise `accuracy` on one call: output and gradients within the spec's derived bounds."""
    dy = torch.ones_like(call.output)
    # What is exact is computed on the CPU, whose float64 functions are known.
    bounds = spec.exact({name: value.cpu() for name, value in call.arguments.items()}, dy.cpu(), call.sum_error)
    found = {"output": call.output, **(call.gradients(dy) if spec.differentiable else {})}
    found = {name: value.cpu() for name, value in found.items()}
    for name, bounded in bounds.items():
        wrong = ~(
            torch.where(bounded.allowed.isinf(), 0.0, (found[name].double() - bounded.exact).abs()) <= bounded.allowed
        )
        if bool(wrong.any()):
            index = tuple(int(place[0]) for place in torch.nonzero(wrong, as_tuple=True))
            pair = f"{float(found[name][index])}, exact {float(bounded.exact[index])}"
            return f"{name}: {int(wrong.sum())} beyond the bound; first {list(index)}: {pair}"
    return ""


def same_rows(call: Call, parts: Iterable[Tensor | slice], words: str, *, backward: bool = True) -> str:
    """Rows handed over in these parts, forward and backward, against the whole call: bit for bit."""
    # A cotangent that differs from row to row, and is the row's own wherever the row stands.
    dy = call.output.detach().nan_to_num() + 0.5
    whole = {"output": call.output, **(call.gradients(dy) if backward else {})}
    for part in parts:
        rows = {name: value[part] for name, value in call.arguments.items()}
        found = {"output": call.again(None, **rows), **(call.gradients(dy[part], (), None, **rows) if backward else {})}
        for name, value in found.items():
            differs = compare(whole[name][part], value)
            if differs is not None:
                return f"{words}: {name}: {differs}"
    return ""


def _walk(
    recorder: Recorder, chunks: Iterable[Chunk], judges: Mapping[str, Judge], digest: Callable[[bytes], None]
) -> tuple[int, str]:
    """(members seen, the first thing that does not hold)."""
    cases = 0
    for number, chunk in enumerate(chunks):
        shape = tuple(next(iter(chunk.arguments.values())).shape)
        inputs = Inputs(shape=shape, recipe="enumerated", format=chunk.format, seed=number)
        device = DEVICES[recorder.backend]
        call = recorder.record(inputs, {name: value.to(device) for name, value in chunk.arguments.items()})
        output = call.output.contiguous().cpu()
        digest(numpy_bits(output).tobytes() if output.is_floating_point() else output.numpy().tobytes())
        for identifier, judge in judges.items():
            wrong = judge(call)
            if wrong:
                return cases, f"{identifier}: chunk {number}: {wrong}"
        cases += chunk.members
    return cases, ""


def _recorder(contract: Contract, spec: OperatorSpec, subject: str, object: str) -> Recorder:
    orders = contract.subjects[subject].orders[backend()]
    named = (*spec.row_arguments, *spec.shared_arguments) if spec.differentiable else ()
    return Recorder(
        _imported(object),
        backend=backend(),
        reference=_imported(contract.equations[contract.subjects[subject].equation].reference),
        sum_error=lambda format, terms: sum_error(orders[format], terms),
        differentiable=[name for name in named if name not in spec.without_gradient],
    )


def _imported(object: str) -> Callable[..., Any]:
    if object.endswith(")"):
        outer, _, inner = object[:-1].partition("(")
        applied: Callable[..., Any] = _imported(outer)(_imported(inner))
        return applied
    module, _, attribute = object.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found
