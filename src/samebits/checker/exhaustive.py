"""Proves obligations for a finite set of inputs: each is judged on every member by what judges samples elsewhere.

Then its twins: the same enumeration of a planted fault, which must be refuted. Knows no operator."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samebits.checker.cases import Case, Selection
from samebits.checker.driving import Setting
from samebits.checker.obligations import Judgement, judgements
from samebits.checker.outcome import outcome
from samebits.checker.properties import recording
from samebits.checker.targets import import_function
from samebits.contracts.call import Inputs
from samebits.contracts.enumeration import backend
from samebits.contracts.finite import FiniteSet
from samebits.contracts.language import PROMISES, Contract
from samebits.contracts.predicates import PREDICATES
from samebits.contracts.proof import Proof
from samebits.contracts.registry import Component
from samebits.contracts.spec import Arguments, Function
from samebits.records.report import Verdict

# Names how the cotangent of a gradient is drawn; the members' own numbers come from the set.
COTANGENTS = "normal"


def enumerate_set(
    component: Component, finite: FiniteSet, obligations: Sequence[str], parts: range | None = None
) -> Proof:
    """The obligations, all of one subject, on all parts, or on some for a test; then a planted fault of each."""
    contract = component.contract()
    whole = _Enumeration(contract, finite, range(finite.parts) if parts is None else parts)
    asked = [next(judgements(component, contract, identifier, backend(), Selection())) for identifier in obligations]
    cases, witness = whole.run(asked)
    twins = [_twin(whole, each) for each in asked] if not witness else []
    chosen = whole.chosen
    some = "" if parts is None else f", parts {chosen.start} to {chosen.stop - 1} of {finite.parts}"
    decided = f"{finite.words}{some}: {cases} {' '.join(obligations)}"
    return Proof(
        kind="enumeration",
        bound=f"{finite.words}{some}",
        cases=cases,
        expected=finite.members if parts is None else sum(finite.rows(number) for number in chosen),
        planted=len(asked),
        caught=sum(twins),
        witness=witness,
        digest=hashlib.sha256(decided.encode()).hexdigest(),
    )


def _twin(whole: _Enumeration, judgement: Judgement) -> bool:
    """Whether the obligation's first planted fault is refuted within the set; the run stops where it is."""
    function = import_function(next(iter(judgement.mutants.values())))
    return bool(whole.run([judgement], function)[1])


@dataclass(frozen=True, slots=True)
class _Enumeration:
    """Parts of a set, in order."""

    contract: Contract
    finite: FiniteSet
    chosen: range

    def run(self, judgements: Sequence[Judgement], function: Function | None = None) -> tuple[int, str]:
        """(members judged, the first that does not hold). `function` stands in for the subject."""
        cases = 0
        for number in self.chosen:
            device = judgements[0].setting.device
            arguments = {name: value.to(device) for name, value in self.finite.part(number).items()}
            witness = self._part(judgements, function, number, arguments)
            if witness:
                return cases, f"part {number}: {witness}"
            cases += _rows(judgements[0].setting, arguments)
        return cases, ""

    def _part(
        self, judgements: Sequence[Judgement], function: Function | None, number: int, arguments: Arguments
    ) -> str:
        first = judgements[0].setting
        # A fresh process cannot be handed the members by name.
        spec = replace(first.spec, make=lambda *_: {name: value.clone() for name, value in arguments.items()})
        setting = replace(first, spec=spec, function=function or first.function, importable="")
        case = Case((_rows(setting, arguments),), COTANGENTS, self.finite.format, number)
        promises = [each for each in judgements if each.promise in PROMISES]
        for each in promises:
            found = _kept(each, setting, case)
            if found:
                return found
        return self._held([each.obligation for each in judgements if each not in promises], setting, case, arguments)

    def _held(self, obligations: Sequence[str], setting: Setting, case: Case, arguments: Arguments) -> str:
        """One recorded call, judged by every predicate."""
        if not obligations:
            return ""
        inputs = Inputs(shape=case.shape, recipe=case.recipe, format=case.format, seed=case.seed)
        call = recording(setting).record(inputs, arguments)
        for identifier in obligations:
            obligation = self.contract.obligations[identifier]
            predicate = PREDICATES.get(obligation.name) or import_function(obligation.name)
            found = predicate(call, obligation.tolerance, **obligation.parameters)
            if found:
                return f"{identifier}: {found}"
        return ""


def _kept(judgement: Judgement, setting: Setting, case: Case) -> str:
    """What breaks a promise on a part, or "". What cannot be judged proves nothing and is an error."""
    assert judgement.check is not None  # every promise of a component has a check
    result = outcome(judgement.check(setting, [case]))
    if result.verdict is Verdict.COULD_NOT_BE_JUDGED or result.raised:
        raise ValueError(f"{judgement.obligation}: {result.verdict}: {result.detail}")
    return f"{judgement.obligation}: {result.detail}" if result.verdict is Verdict.DOES_NOT_HOLD else ""


def _rows(setting: Setting, arguments: Arguments) -> int:
    return arguments[setting.spec.row_arguments[0]].shape[0]
