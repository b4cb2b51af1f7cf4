"""Every promise holds on the components for a small input, catches its planted faults, and has a function of its
own."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from samebits.checker import plan
from samebits.checker.cases import Case, Selection
from samebits.checker.judging import judge
from samebits.checker.obligations import Judgement
from samebits.checker.outcome import outcome
from samebits.checker.promises import CHECKS, MODULES
from samebits.checker.promises.rows import padding
from samebits.checker.properties import check_of
from samebits.checker.targets import OPERATORS
from samebits.contracts.call import Call
from samebits.contracts.language import PROMISES, Obligation, Tolerance
from samebits.ops.cross_entropy.check import cross_entropy_of_rows
from samebits.records.report import Verdict

# The promises of the two components with the largest domains are narrowed to one shape here: more rows than a chain is
# wide, a tail on every axis. All else is judged on its whole domain, as the command does.
SHAPES = {"linear": (33, 100, 33), "matmul": (33, 100, 33), "rmsnorm": (33, 300)}


def judgements(component: str) -> list[Judgement]:
    """All of a component on the CPU."""
    return [
        _narrowed(each) if component in ("matmul", "rmsnorm") and each.promise in PROMISES else each
        for each in plan(component, backend="cpu").judgements
    ]


def _narrowed(judgement: Judgement) -> Judgement:
    """One shape and one recipe; order keeps small sums, which are quick."""
    shape = SHAPES.get(judgement.setting.spec.name) if judgement.promise != "order" else None
    cases = [case for case in judgement.cases if case.recipe == judgement.cases[0].recipe]
    if shape:
        cases = [dataclasses.replace(case, shape=shape) for case in cases if case.shape == cases[0].shape]
    else:
        cases = [case for case in cases if case.shape[0] == 1 or (case.shape[0] == 8 and case.shape[1] == 64)]
    return dataclasses.replace(judgement, cases=cases, fault_cases=cases)


ALL = [judgement for component in OPERATORS.components() for judgement in judgements(component)]
# Half a minute and more each on its whole domain: judged by the long tests, and by receipts that are replayed.
LONG = {(name, "order") for name in ("grad_norm", "grouped_matmul", "layernorm", "matmul")}


def _listed(judgement: Judgement) -> Any:
    subject = judgement.subject.split(".")[0]
    marks = [pytest.mark.long] if (subject, judgement.promise) in LONG else []
    return pytest.param(judgement, marks=marks, id=f"{judgement.subject}-{judgement.promise}")


@pytest.mark.parametrize("judgement", [_listed(each) for each in ALL])
def test_a_component_keeps_its_promise_and_the_planted_faults_are_caught(judgement: Judgement) -> None:
    finding = judge(judgement)
    assert finding.verdict is Verdict.HOLDS, finding.detail
    assert finding.cases >= 1 and finding.reproduce == ""
    assert finding.faults_caught == finding.faults_planted == len(judgement.mutants) >= 1


def test_every_obligation_of_a_contract_has_a_check_and_every_check_is_a_promise() -> None:
    asked = [
        each for component in OPERATORS.components().values() for each in component.contract().obligations.values()
    ]
    assert {each.name for each in asked} & set(PROMISES) <= set(CHECKS) <= set(PROMISES)
    assert all(check_of(each) is not None for each in asked)


def test_a_promise_without_a_check_is_never_a_pass() -> None:
    finding = judge(dataclasses.replace(ALL[0], promise="tensor", check=None))
    assert finding.verdict is Verdict.COULD_NOT_BE_JUDGED
    assert finding.detail == "no check for 'tensor' exists yet"


def test_a_fault_that_survives_fails_the_promise() -> None:
    """Planted: the healthy subject stands in for its own fault."""
    batch = next(each for each in ALL if each.promise == "batch")
    finding = judge(dataclasses.replace(batch, mutants={"XX-MU1": batch.setting.importable}))
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert finding.detail == f"planted fault XX-MU1 ({batch.setting.importable}) survived: holds"
    assert (finding.faults_caught, finding.faults_planted) == (0, 1)


def test_a_fault_that_crashes_is_not_caught() -> None:
    """Planted: a fault that takes no arguments shows nothing about the check."""
    batch = next(each for each in ALL if each.promise == "batch")
    finding = judge(dataclasses.replace(batch, mutants={"XX-MU1": "os:getcwd"}))
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert "planted fault XX-MU1 (os:getcwd) raised instead of differing" in finding.detail


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where there is no GPU")
def test_what_needs_a_gpu_could_not_be_judged_here() -> None:
    work = plan("matmul", promises=["device", "batch"], selection=Selection(shape=(3, 16, 4), formats=("float32",)))
    verdicts = {(each.promise, each.backend): judge(each).verdict for each in work.judgements}
    assert verdicts["device", "cpu, triton"] is Verdict.COULD_NOT_BE_JUDGED
    assert verdicts["batch", "triton"] is Verdict.COULD_NOT_BE_JUDGED
    assert verdicts["batch", "cpu"] is Verdict.HOLDS


def test_device_is_not_asked_when_one_backend_is() -> None:
    work = plan("matmul", backend="cpu")
    assert "device" not in {each.promise for each in work.judgements}
    assert work.not_asked == ("matmul.linear: device compares both backends and only cpu was asked for",)


def test_narrowing_the_inputs_does_not_narrow_the_planted_faults() -> None:
    """Three rows never reach the fault that splits above eight; the contract's own inputs do."""
    work = plan("matmul", "matmul", promises=["batch"], backend="cpu", selection=Selection(shape=(3, 16, 4)))
    (judgement,) = work.judgements
    assert {case.shape for case in judgement.cases} == {(3, 16, 4)}
    finding = judge(judgement)
    assert (finding.verdict, finding.faults_caught, finding.faults_planted) == (Verdict.HOLDS, 2, 2)


UNDERFLOWING = Case((1, 11, 15), "wide", "float32", 710552048)


def padded_sums(function: Callable[..., Any]) -> list[str]:
    """What padding finds in the losses of one row whose probabilities underflow: some sums over rows are -0."""
    judgement = next(each for each in ALL if (each.subject, each.promise) == ("cross_entropy", "padding"))
    setting = dataclasses.replace(judgement.setting, function=function)
    return [each.difference for each in padding(setting, UNDERFLOWING) if each.difference]


def gradient_of_weight(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The loss, with another gradient of the weights wherever rows are padding."""

    def loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(hidden) > 1 and weight.requires_grad:
            weight = weight.view_as(weight)
            weight.register_hook(change)
        return cross_entropy_of_rows(hidden, weight, targets)

    return loss


def test_the_sign_of_what_underflowed_is_no_ones_fault() -> None:
    """-0 and the +0 of a row of padding are +0, in any order."""
    assert padded_sums(cross_entropy_of_rows) == []


@pytest.mark.parametrize("change", [torch.neg, lambda sums: sums + 2.0**-149], ids=["signs", "a smallest step"])
def test_any_other_bit_of_a_padded_sum_is_a_fault(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert "rows of zero on the right: gradient of weight" in padded_sums(gradient_of_weight(change))[0]


def test_where_each_promise_is_judged_is_known() -> None:
    assert set(MODULES) == set(CHECKS)
    assert all(importlib.import_module(name) for names in MODULES.values() for name in names)


def looks_at_nothing(call: Call, tolerance: Tolerance) -> str:
    """Planted fault: a predicate that is content with whatever was called."""
    return ""


def looks_once(call: Call, tolerance: Tolerance) -> str:
    return "" if call.output.numel() else "empty"


@pytest.mark.parametrize(
    ("predicate", "verdict"), [(looks_at_nothing, Verdict.DOES_NOT_HOLD), (looks_once, Verdict.HOLDS)]
)
def test_no_recorded_call_is_a_failure(predicate: Callable[..., str], verdict: Verdict) -> None:
    judgement = next(each for each in ALL if each.subject == "softmax" and each.promise not in PROMISES)
    check = check_of(replace_predicate(judgement, f"{__name__}:{predicate.__name__}"))
    assert check is not None
    found = outcome(check(judgement.setting, judgement.cases[:2]))
    assert found.verdict is verdict and found.raised is (verdict is Verdict.DOES_NOT_HOLD)
    assert verdict is Verdict.HOLDS or "was not looked at: the predicate read no output" in found.detail


def replace_predicate(judgement: Judgement, name: str) -> Obligation:
    contract = OPERATORS.components()["softmax"].contract()
    return dataclasses.replace(contract.obligations[judgement.obligation], predicate={"name": name})
