"""Level 3 side by side: every obligation gets its calls, its verdict and its digest as if it were alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from samebits.checker.cases import Case, Selection
from samebits.checker.driving import begin, everything, made
from samebits.checker.falsification import Tried, judgement_of
from samebits.checker.obligations import judgements
from samebits.checker.outcome import outcome
from samebits.checker.proving import SEED, Task, attempt, tasks, together
from samebits.checker.recent import Recent
from samebits.checker.replaying import judged
from samebits.checker.streaming import alike, tried_together
from samebits.checker.targets import OPERATORS
from samebits.contracts.language import Contract
from samebits.contracts.receipts import FALSE, Receipt
from samebits.contracts.registry import Component
from samebits.contracts.standard import STANDARD
from samebits.ops.sample.check import draw_by_request
from samebits.records.report import Verdict

CALLS = 80
SWIGLU = OPERATORS.components()["swiglu"]


def short(contract: Contract, calls: int = CALLS) -> Contract:
    """The same contract with fewer calls than a file may ask for."""
    domains = {name: replace(each, draw=replace(each.draw, calls=calls)) for name, each in contract.domains.items()}
    return replace(contract, domains=domains)


@pytest.fixture
def swiglu(monkeypatch: pytest.MonkeyPatch) -> Component:
    contract = short(SWIGLU.contract())
    monkeypatch.setattr(Component, "contract", lambda self: contract)
    return SWIGLU


def promised(contract: Contract, promise: str) -> str:
    return next(name for name, each in contract.obligations.items() if each.name == promise)


def found(component: Component, *identifiers: str) -> dict[str, Tried]:
    tried = dict(tried_together(component, identifiers, "cpu", SEED))
    assert not [each for each in tried.values() if isinstance(each, str)]
    return {name: each for name, each in tried.items() if not isinstance(each, str)}


@pytest.mark.parametrize("promise", [name for name in STANDARD if name != "device"])
def test_each_generic_fault_is_caught_by_the_stream(monkeypatch: pytest.MonkeyPatch, promise: str) -> None:
    """The subject itself is faulty, judged beside the other promises that share its calls."""
    plain = short(SWIGLU.contract())
    subject = plain.subjects["SG-S1"]
    faulty = replace(subject, object=f"samebits.contracts.standard_faults:{STANDARD[promise].fault}({subject.object})")
    contract = replace(plain, subjects={**plain.subjects, "SG-S1": faulty})
    monkeypatch.setattr(Component, "contract", lambda self: contract)
    broken = promised(contract, promise)
    like = alike(contract, broken, "cpu")
    others = [name for name, each in contract.obligations.items() if name != broken and each.name != "repeat"]
    beside = [name for name in others if alike(contract, name, "cpu") == like][:2]
    tried = found(SWIGLU, *beside, broken)[broken]
    assert not tried.holds and tried.detail and not tried.killed, tried


def test_beside_others_and_alone_give_one_result(swiglu: Component) -> None:
    contract = swiglu.contract()
    like = alike(contract, promised(contract, "batch"), "cpu")
    group = [name for name in contract.obligations if alike(contract, name, "cpu") == like]
    assert len(group) >= 4, "choose a contract whose promises share a draw"
    side_by_side = found(swiglu, *group)
    alone = {name: found(swiglu, name)[name] for name in group}
    reordered = found(swiglu, *reversed(group))
    for name in group:
        facts = [replace(each[name], seconds=0.0) for each in (side_by_side, alone, reordered)]
        assert facts[0] == facts[1] == facts[2] and facts[0].holds
        assert facts[0].calls == CALLS == sum(facts[0].classes.values())
        assert len(facts[0].killed) == facts[0].planted >= 1


def test_a_replay_of_one_finds_what_was_altered_in_a_receipt_made_beside_others(swiglu: Component) -> None:
    known = {"swiglu": swiglu}
    wanted = {promised(swiglu.contract(), each) for each in ("batch", "tile")}
    chosen = [task for task in tasks(swiglu, (3,), "cpu") if task.name in wanted]
    (group,) = together(chosen, 1)
    assert set(group.obligations) == wanted
    receipts = [each for each in attempt(group, known) if isinstance(each, Receipt)]
    assert len(receipts) == 2 and all(each.holds and each.seed == SEED for each in receipts)
    for receipt, task in zip(receipts, chosen, strict=True):
        again = attempt(task, known, receipt.seed)
        assert judged(receipt, again)[0] == "reproduced"
        for forged in ({"result": "0" * 64}, {"calls": CALLS + 1}, {"killed": {}}, {"holds": False}):
            assert judged(replace(receipt, **forged), again)[0] == FALSE  # type: ignore[arg-type]
    other_seed = attempt(chosen[0], known, SEED + 1)
    assert judged(receipts[0], other_seed)[0] == FALSE


def test_tasks_are_put_together_without_losing_any() -> None:
    """Obligations of one draw share a task; more jobs get smaller ones."""
    contract, singles = SWIGLU.contract(), tasks(SWIGLU, (2, 3), "cpu")
    for jobs in (1, 2, 14):
        made_tasks = together(singles, jobs)
        named = [(task.level, name) for task in made_tasks for name in task.obligations]
        assert sorted(named) == sorted((task.level, task.name) for task in singles)
        for task in made_tasks:
            assert len({alike(contract, name, task.backend) for name in task.obligations}) == 1 or task.level == 2
    sizes = [max(len(task.obligations) for task in together(singles, jobs)) for jobs in (1, 14)]
    assert sizes[0] > sizes[1] == 1


def test_what_one_check_changes_no_other_sees() -> None:
    """Inputs that are shared are handed out as copies."""
    setting = replace(judgement_of(SWIGLU, "SG-OB102", "cpu").setting, recent=Recent())
    case = Case((3, 5), "normal", "float32", 11)
    prepared, results = begin(setting, case, everything(setting.spec))
    expected = made(setting, case)
    for value in prepared.arguments.values():
        value.zero_()
    again, same = begin(setting, case, everything(setting.spec))
    assert all(torch.equal(again.arguments[name], value) for name, value in expected.items())
    assert all(same[name] is results[name] for name in results), "the first call was made twice"


def _zero_where_nothing_can_be_drawn(logits: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
    """A fault: a row without probabilities gives token 0."""
    return draw_by_request(logits, requests, positions).clamp(min=0)


def test_accuracy_is_judged_on_every_recipe() -> None:
    """A recipe that a contract draws is compared, not passed over, and only what was compared is counted."""
    component = OPERATORS.components()["sample"]
    (judgement,) = judgements(component, component.contract(), "SA-OB106", "cpu", Selection())
    assert judgement.check is not None
    cases = [Case((9, 40), recipe, "float32", 3) for recipe in ("normal", "infinite", "zeros_signed")]
    result = outcome(judgement.check(judgement.setting, cases))
    assert result.verdict is Verdict.HOLDS and result.recipes == {"infinite": 1, "normal": 1, "zeros_signed": 1}
    faulty = replace(judgement.setting, function=_zero_where_nothing_can_be_drawn)
    assert outcome(judgement.check(faulty, cases[:1])).verdict is Verdict.HOLDS
    assert outcome(judgement.check(faulty, cases)).verdict is Verdict.DOES_NOT_HOLD


def test_an_obligation_that_cannot_be_judged_leaves_the_others_their_receipts(
    monkeypatch: pytest.MonkeyPatch, swiglu: Component
) -> None:
    from samebits.checker import fresh
    from samebits.records.report import UnjudgedError

    def fails(*_: object) -> list[str]:
        raise UnjudgedError("a fresh process failed: no memory")

    monkeypatch.setattr(fresh, "digests", fails)
    contract = swiglu.contract()
    names = tuple(promised(contract, each) for each in ("repeat", "tile"))
    one, other = attempt(Task(component=swiglu, level=3, backend="cpu", obligations=names), {"swiglu": swiglu})
    assert isinstance(one, str) and one.startswith(f"{names[0]} level 3 cpu (swiglu): a fresh process failed")
    assert isinstance(other, Receipt) and other.holds and other.obligation == names[1]


def test_drawn_cases_meet_every_form_of_a_call() -> None:
    """Which check a case meets and which of the check's forms are drawn apart: by one number, left padding was never
    met. The function never gives the same bits twice, so that each form that is met is heard of."""
    plain = judgement_of(OPERATORS.components()["attention"], "AT-OB103", "cpu")
    calls = itertools.count(1)

    def restless(*arguments: Tensor, **options: object) -> Tensor:
        return plain.setting.function(*arguments, **options) * next(calls)

    setting = replace(plain.setting, function=restless, ways=1)
    cases = [Case((1, 2, 2, 1, 32), "normal", "float32", seed) for seed in range(100)]
    assert plain.check is not None
    met = " ".join(each.difference for each in plain.check(setting, cases))
    assert all(
        words in met for words in ("tokens of NaN on the left", "tokens of NaN on the right", "packed", "rows of")
    )
