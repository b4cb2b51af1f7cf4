"""What the model's layer promises holds: every obligation on its written cases, and every planted fault is caught."""

from __future__ import annotations

import pytest
from tests.contracts.judged import assert_holds, components_of, judgements_of

import samebits.model.contracts
import samebits.ops
from samebits.checker.obligations import Judgement
from samebits.checker.targets import OPERATORS
from samebits.model.contracts.operator_dtypes.public import functions
from samebits.model.contracts.operators import declared_operators
from samebits.ops.arguments import DTYPES, short

COMPONENTS = components_of(samebits.model.contracts)
JUDGEMENTS = judgements_of(COMPONENTS)


@pytest.mark.parametrize("judgement", JUDGEMENTS, ids=lambda judgement: judgement.obligation)
def test_an_obligation_holds_and_its_faults_are_caught(judgement: Judgement) -> None:
    assert_holds(judgement)


def test_the_components_are_those_that_were_meant() -> None:
    """A folder that lost its contract would no longer be judged, and nobody would notice."""
    assert set(COMPONENTS) == {"bpe_tokenizer", "kv_cache", "model_forward", "operator_dtypes", "operator_tolerance"}


@pytest.mark.parametrize("name", ["operator_dtypes", "operator_tolerance"])
def test_what_is_said_of_all_operators_rests_on_all(name: str) -> None:
    """Evidence dies with the code of any of them, a new one too."""
    assert set(COMPONENTS[name].contract().depends_on) == set(OPERATORS.components())


def test_tolerances_are_tried_in_every_dtype_that_operators_take() -> None:
    domains = COMPONENTS["operator_tolerance"].contract().domains.values()
    assert {tuple(domain.formats) for domain in domains} == {tuple(map(short, DTYPES))}
    assert len(declared_operators()) >= len(OPERATORS.components())


def test_a_public_function_without_arguments_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: an operator that is offered, and that no dtype is tried on."""
    monkeypatch.setattr("samebits.ops.__all__", [*samebits.ops.__all__, "newcomer"])
    monkeypatch.setattr("samebits.ops.newcomer", lambda x: x, raising=False)
    with pytest.raises(ValueError, match="newcomer: no contract has it as a subject"):
        functions(1)
