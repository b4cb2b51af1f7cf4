"""Every standard check of one elementwise operator, by its name alone: run inside a tree that holds it; prints JSON.

Knows no operator: what it does follows from the declaration."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import torch

import samebits
from samebits import native
from samebits.checker import check
from samebits.checker.proofs import carried_out
from samebits.checker.targets import OPERATORS, specs
from samebits.contracts.validating import validate
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.ops._cpu import launches
from samebits.ops.registering import registered_cuts
from samebits.parallel import dtensor


def registration(name: str) -> dict[str, Any]:
    """torch's own checks of schema, fake, autograd and ahead-of-time dispatch, forward and backward."""
    count = len(specs(OPERATORS.components()[name])[name].row_arguments)
    dy, *tensors = torch.randn(1 + count, 6, 5)
    given = [each.clone().requires_grad_() for each in tensors]
    operators = torch.ops.samebits
    forward = torch.library.opcheck(getattr(operators, name).default, (*given, "cpu"))
    backward = torch.library.opcheck(getattr(operators, f"{name}_backward").default, (dy, *tensors, "cpu"))
    dtensor.enable()
    cut = [each for each in (name, f"{name}_backward") if each in registered_cuts() and each in dtensor._enabled]
    return {"forward": forward, "backward": backward, "cut": cut}


def backends(name: str) -> dict[str, Any]:
    """The backend asked for runs, by the library's own function; CPU and reference agree on every instruction set."""
    function = getattr(import_module(f"samebits.ops.{name}"), name)
    arguments = specs(OPERATORS.components()[name])[name].make((17, 70), "wide", "float32", 1)
    leaves = [value.requires_grad_() for value in arguments.values()]

    def everything(backend: str) -> list[torch.Tensor]:
        y = function(*leaves, backend=backend)
        return [y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    expected, before = everything("reference"), launches()
    differing = []
    for instruction_set in native.instruction_sets():
        with launching(instruction_set=instruction_set, threads=3):
            pairs = zip(everything("cpu"), expected, strict=True)
            differing += [instruction_set for one, other in pairs if compare(one, other) is not None]
    ran = launches() - before
    refused = []
    for backend in ("triton", "cublas"):
        try:
            function(*leaves, backend=backend)
        except ValueError as error:
            refused.append(str(error))
    return {"differing": differing, "ran": sorted({kernel for kernel, _ in ran}), "refused": refused}


def judged(name: str) -> dict[str, Any]:
    """Every obligation on the CPU, each with its planted faults."""
    findings = check(name, backend="cpu").findings
    return {
        each.promise: [str(each.verdict), each.faults_caught, each.faults_planted, each.detail] for each in findings
    }


def proved(name: str) -> dict[str, Any]:
    """Its derived proofs, without a GPU."""
    component = OPERATORS.components()[name]
    shown = [carried_out(component, entry) for entry in component.contract().proofs.values()]
    return {each.kind: [each.proved, str(each)] for each in shown}


def main(name: str) -> dict[str, Any]:
    """Everything, in the order in which an author would ask."""
    folder = OPERATORS.components()[name].folder
    return {
        "package": str(samebits.__path__[0]),
        "problems": [str(each) for each in validate([folder], deep=True)],
        "registration": registration(name),
        "backends": backends(name),
        "judged": judged(name),
        "proved": proved(name),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])), flush=True)
