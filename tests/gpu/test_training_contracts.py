"""What training promises on a device alone: copies, sums, settings, late streams; every planted fault is caught.

A hundred steps of 350 million weights are two minutes, and left to `samebits contract prove train_stable_350m`."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.judged import assert_holds, components_of

import samebits.train.contracts
from samebits.checker.obligations import Judgement
from samebits.checker.planning import plan_component

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")
COMPONENTS = components_of(samebits.train.contracts)
JUDGEMENTS = [
    each
    for name in ("accumulation_gpu", "settled_gpu", "stream_sync", "training_gpu")
    for each in plan_component(COMPONENTS[name], backend="triton").judgements
]


@pytest.mark.parametrize("judgement", JUDGEMENTS, ids=lambda judgement: judgement.obligation)
def test_an_obligation_holds_and_its_faults_are_caught(judgement: Judgement) -> None:
    assert_holds(judgement)
