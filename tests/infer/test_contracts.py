"""What the engine promises on a GPU alone: without one it is refused in a line, and what it is compared with runs."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.judged import components_of

import samebits.infer.contracts
from samebits.checker.planning import plan_component
from samebits.infer.chosen_step import PLAIN
from samebits.infer.contracts.decode_step_gpu import PAGE_SIZE, STEPS, decoded
from samebits.infer.contracts.decode_step_gpu.check import SPECS
from samebits.infer.contracts.decode_step_gpu.model import CONFIG

COMPONENTS = components_of(samebits.infer.contracts)
SHAPE = 3, 40, 2


def test_the_components_are_those_that_were_meant() -> None:
    """A folder that lost its contract would no longer be judged, and nobody would notice."""
    assert set(COMPONENTS) == {"decode_step_gpu"}
    judgements = plan_component(COMPONENTS["decode_step_gpu"], backend="triton").judgements
    assert [each.obligation for each in judgements] == ["GPUSTEP-OB1"]


def test_the_plain_step_runs_on_what_is_drawn() -> None:
    """Its last rows are what is in the pages: some keys and values are new, all others as they were."""
    given = SPECS["decode_step_gpu"].make(SHAPE, "normal", "bfloat16", 1)
    rows, logits = SHAPE[0], SHAPE[0] * CONFIG.vocab_size * STEPS
    found = decoded(**given, kind=PLAIN)
    assert torch.equal(found, decoded(**given, kind=PLAIN)) and found.isfinite().all()
    before, after = given["kept"].float(), found[logits:].reshape(given["kept"].shape)
    assert given["kept"].shape[2] == rows * 3 * PAGE_SIZE and int(given["held"].max()) == SHAPE[1] - 1
    changed = (before != after).any(-1).any(-1).sum(-1)
    assert changed.tolist() == [[STEPS * rows] * 2] * SHAPE[2]


def test_the_step_for_hopper_is_refused_elsewhere() -> None:
    given = SPECS["decode_step_gpu"].make(SHAPE, "normal", "bfloat16", 1)
    with pytest.raises(ValueError, match="decode_step 'hopper' needs a CUDA GPU and the model is on cpu"):
        decoded(**given)
