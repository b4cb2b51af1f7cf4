"""Alarms: each kind at its first step, with granularity and place; none on a run that is well."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from samebits.trace.drift import Alarm, Drift, Sampled
from samebits.trace.modules import sampled

WELL = Sampled(not_finite=0, zeros=3, elements=1024, largest=1.0)


def run(at: int, **changed: Any) -> list[Alarm]:
    """Thirty steps of a falling loss, one of which has other numbers."""
    drift, found = Drift(), []
    for step in range(1, 31):
        numbers: dict[str, Any] = {
            "loss": 4.0 - 0.05 * step + 0.03 * math.sin(step),
            "norm": 1.0 + 0.3 * math.sin(2 * step),
            "tokens_per_second": 1000.0 + 50 * math.cos(step),
            "blocks": {"layers.0.mlp": WELL, "layers.1.mlp": WELL},
        }
        found += drift.observe(step, **(numbers | changed if step == at else numbers))
    return found


def test_a_run_that_is_well_gives_no_alarm() -> None:
    assert run(0) == []


@pytest.mark.parametrize(
    ("changed", "kind", "granularity", "brick"),
    [
        ({"loss": math.nan}, "not finite", "step", "loss"),
        ({"norm": math.inf}, "not finite", "step", "gradient norm"),
        ({"norm": 3.28e35}, "gradient explosion", "step", "gradient norm"),
        ({"loss": 9.0}, "loss divergence", "step", "loss"),
        ({"tokens_per_second": 300.0}, "throughput drop", "step", "tokens a second"),
        (
            {"blocks": {"layers.0.mlp": WELL, "layers.1.mlp": Sampled(not_finite=2, zeros=0, elements=9, largest=1.0)}},
            "not finite",
            "block",
            "layers.1.mlp",
        ),
        (
            {"blocks": {"layers.0.mlp": Sampled(not_finite=0, zeros=9, elements=9, largest=0.0)}},
            "dead gradient",
            "block",
            "layers.0.mlp",
        ),
    ],
)
def test_each_kind_is_told_once_where_it_begins(
    changed: dict[str, Any], kind: str, granularity: str, brick: str
) -> None:
    (alarm,) = run(20, **changed)
    assert (alarm.kind, alarm.granularity, alarm.brick, alarm.step) == (kind, granularity, brick, 20)
    assert str(alarm).startswith(f"{kind}: step 20: {granularity} {brick} is ")


def test_a_sample_counts() -> None:
    found = sampled(torch.tensor([[1.0, -3.0], [0.0, math.nan]]))
    assert found == Sampled(not_finite=1, zeros=1, elements=4, largest=3.0)
    assert sampled(torch.full((100_000,), 2.0)).elements <= 1024


def test_a_gradient_is_dead_only_where_all_of_it_is() -> None:
    """Elements at equal distances may be one column of a matrix: of 1,024 rows of 1,024 they are."""
    gradient = torch.ones(1024, 1024)
    gradient[:, 0] = 0
    blocks = {"alive": sampled(gradient), "dead": sampled(torch.zeros(1024, 1024))}
    alarms = Drift().observe(1, loss=1.0, norm=1.0, blocks=blocks)
    assert [(each.kind, each.brick) for each in alarms] == [("dead gradient", "dead")]
