"""What the engine promises on a device alone; every planted fault is caught."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.judged import assert_holds, components_of

import samebits.infer.contracts
from samebits.checker.obligations import Judgement
from samebits.checker.planning import plan_component

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")
JUDGEMENTS = [
    each
    for component in components_of(samebits.infer.contracts).values()
    for each in plan_component(component, backend="triton").judgements
]


@pytest.mark.parametrize("judgement", JUDGEMENTS, ids=lambda judgement: judgement.obligation)
def test_an_obligation_holds_and_its_faults_are_caught(judgement: Judgement) -> None:
    assert_holds(judgement)
