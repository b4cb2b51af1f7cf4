"""Alarms: each kind at its first step, with granularity and place; none on a run that is well."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from samebits.trace.drift import DROPS, EXPLODES, LEAST, WINDOW, Alarm, Drift, Sampled
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


def told(losses: list[float] | None = None, norms: list[float] | None = None, speeds: list[float] | None = None) -> Any:
    """(kind, step) of all alarms of a run with these numbers; what is left out is steady."""
    drift, found = Drift(), []
    steps = max(len(each) for each in (losses, norms, speeds) if each)
    columns = [each or [1.0] * steps for each in (losses, norms, speeds)]
    for step, (loss, norm, speed) in enumerate(zip(*columns, strict=True), 1):
        found += drift.observe(step, loss=loss, norm=norm, tokens_per_second=speed)
    return [(each.kind, each.step) for each in found]


def test_limits_are_allowed_and_what_is_beyond_them_is_not() -> None:
    """Steady numbers of 1 have no spread: 1 % of the loss stands for it."""
    steady = [1.0] * LEAST
    assert told(norms=[*steady, EXPLODES]) == told(speeds=[*steady, DROPS]) == told(losses=[*steady, 1.08]) == []
    after = LEAST + 1
    assert told(norms=[*steady, math.nextafter(EXPLODES, math.inf)]) == [("gradient explosion", after)]
    assert told(speeds=[*steady, math.nextafter(DROPS, 0.0)]) == [("throughput drop", after)]
    assert told(losses=[*steady, math.nextafter(1.08, math.inf)]) == [("loss divergence", after)]


def test_nothing_is_compared_with_too_few_steps() -> None:
    few = [1.0] * (LEAST - 1)
    assert told(norms=[*few, 1e9]) == told(speeds=[*few, 1e-9]) == told(losses=[*few, 1e9]) == []
    assert told(losses=[*few, math.nan]) == [("not finite", LEAST)]


def test_every_spike_is_told_not_the_first_alone() -> None:
    """A number that alarms is left out of what later ones are compared with."""
    steady = [1.0] * LEAST
    assert told(losses=[*steady, 9.0, 1.0, 9.0, 8.0, 1.0]) == [
        ("loss divergence", LEAST + 1),
        ("loss divergence", LEAST + 3),
    ]
    spikes = [*steady, *([100.0, 1.0] * WINDOW)]
    assert len(told(norms=spikes)) == len(told(losses=spikes)) == WINDOW


def test_a_level_that_lasts_counts_and_what_comes_on_top_of_it_is_told() -> None:
    steady, higher = [1.0] * LEAST, [100.0] * LEAST
    assert told(norms=[*steady, *higher, 100.0, 1000.0, 1000.1]) == [
        ("gradient explosion", LEAST + 1),
        ("gradient explosion", 2 * LEAST + 3),
    ]
    # One step fewer is no level yet: the larger number belongs to the alarm that was told.
    assert told(norms=[*steady, *higher[1:], 1e9]) == [("gradient explosion", LEAST + 1)]
    assert told(speeds=[*steady, *([0.4] * LEAST), 0.21, 0.19]) == [
        ("throughput drop", LEAST + 1),
        ("throughput drop", 2 * LEAST + 2),
    ]


def test_the_window_forgets_what_lies_further_back() -> None:
    """A loss that fell and rises again is compared with its last steps."""
    fallen = [*[5.0] * LEAST, *[1.0] * WINDOW]
    assert told(losses=[*fallen[:-1], 2.0]) == [] and told(losses=[*fallen, 2.0]) == [
        ("loss divergence", len(fallen) + 1)
    ]
